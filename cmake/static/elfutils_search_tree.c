/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Search trees for a static link against elfutils 0.192, whose libelf.a and libdw.a call
 * eu_tsearch() and its sisters without containing them (the shared libraries do). Weak, so that
 * they step back where an archive does contain them.
 *
 * The contract is read off the callers: a tree begins with its root pointer, trees are initialised
 * before use, and the functions otherwise mean what tsearch(3) means. One recursive lock for all
 * trees: elfutils may be built to use them from several threads, and a free function may drop
 * another tree.
 */
#define _GNU_SOURCE
#include <pthread.h>
#include <search.h>
#include <stddef.h>

typedef struct {
  void* root;
} search_tree;
#define WEAK __attribute__((weak))
typedef int (*compare_fn)(const void*, const void*);

WEAK void eu_search_tree_init(search_tree* tree);
WEAK void eu_search_tree_fini(search_tree* tree, void (*free_node)(void*));
WEAK void* eu_tsearch(const void* key, search_tree* tree, compare_fn compare);
WEAK void* eu_tfind(const void* key, search_tree* tree, compare_fn compare);
WEAK void* eu_tdelete(const void* key, search_tree* tree, compare_fn compare);
WEAK void eu_tdestroy(search_tree* tree, void (*free_node)(void*));

static pthread_mutex_t lock = PTHREAD_RECURSIVE_MUTEX_INITIALIZER_NP;

void eu_search_tree_init(search_tree* tree) { tree->root = NULL; }

void* eu_tsearch(const void* key, search_tree* tree, compare_fn compare) {
  pthread_mutex_lock(&lock);
  void* node = tsearch(key, &tree->root, compare);
  pthread_mutex_unlock(&lock);
  return node;
}

void* eu_tfind(const void* key, search_tree* tree, compare_fn compare) {
  pthread_mutex_lock(&lock);
  void* node = tfind(key, &tree->root, compare);
  pthread_mutex_unlock(&lock);
  return node;
}

void* eu_tdelete(const void* key, search_tree* tree, compare_fn compare) {
  pthread_mutex_lock(&lock);
  void* node = tdelete(key, &tree->root, compare);
  pthread_mutex_unlock(&lock);
  return node;
}

void eu_tdestroy(search_tree* tree, void (*free_node)(void*)) {
  pthread_mutex_lock(&lock);
  tdestroy(tree->root, free_node);
  tree->root = NULL;
  pthread_mutex_unlock(&lock);
}

void eu_search_tree_fini(search_tree* tree, void (*free_node)(void*)) {
  eu_tdestroy(tree, free_node);
}

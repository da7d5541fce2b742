package main

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
)

// TestWithPods: a node is lost that has pods, if there is one.
func TestWithPods(t *testing.T) {
	stays, ends := *podAt("w1", "a", "a1", 1), *asked(podAt("w2", "b", "a2", 2))
	elsewhere := *podAt("w3", "c", "s1", 3)
	nodes := []string{"a2", "a1"}
	for what, c := range map[string]struct {
		pods  []corev1.Pod
		node  string
		count int
	}{
		"only the second has some":    {[]corev1.Pod{elsewhere, stays}, "a1", 1},
		"the first has one that ends": {[]corev1.Pod{ends, stays}, "a1", 1},
		"both have some": {[]corev1.Pod{stays, *podAt("w4", "d", "a2", 4), *podAt("w5", "e", "a2", 5)},
			"a2", 2},
		"none has any but one that ends": {[]corev1.Pod{ends, elsewhere}, "a2", 0},
		"there are no pods":              {nil, "a2", 0},
	} {
		if node, count := withPods(nodes, c.pods); node != c.node || count != c.count {
			t.Errorf("%s: %s with %d, want %s with %d", what, node, count, c.node, c.count)
		}
	}
}

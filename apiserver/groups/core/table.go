package core

import (
	"k8s.io/apimachinery/pkg/labels"
)

// formatLabels prints labels in order, or that there are none.
func formatLabels(set map[string]string) string { return orNone(labels.Set(set).String()) }

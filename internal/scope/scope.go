// Package scope resolves a list of names to resources. The names are those of a Kubernetes
// EncryptionConfiguration: "secrets", "deployments.apps", and wildcards. The wildcards are "*." of
// the core group, "*.apps" of a group, and "*.*".
package scope

import (
	"slices"
	"strings"
)

// All is the wildcard for all resources, Core for the core group.
const (
	All  = "*.*"
	Core = "*."
)

// Scope are the resources of Names, without those of Except. The nearest name of a resource counts.
type Scope struct{ Names, Except []string }

// Nearest returns the names by which a list may have a resource or a wildcard, the nearest first.
func Nearest(name string) []string {
	if name == All {
		return []string{All}
	}
	resource, group, _ := strings.Cut(name, ".")
	if ofGroup := "*." + group; resource != "*" {
		return []string{name, ofGroup, All}
	}
	return []string{name, All}
}

// Has reports whether a resource, or all of a wildcard, is in the scope.
func (s Scope) Has(name string) bool {
	for _, as := range Nearest(name) {
		switch {
		case slices.Contains(s.Except, as):
			return false
		case slices.Contains(s.Names, as):
			return true
		}
	}
	return false
}

// Add returns the scope with a name, and Drop the one without.
func (s Scope) Add(name string) Scope {
	s.Except = without(s.Except, name)
	s.Names = with(s.Names, name)
	return s
}

// Drop returns the scope without a name. A wildcard goes on for the others.
func (s Scope) Drop(name string) Scope {
	s.Names = without(s.Names, name)
	if s.Has(name) {
		s.Except = with(s.Except, name)
	}
	return s.Pruned()
}

// Pruned returns the scope without the exceptions to which no wildcard applies.
func (s Scope) Pruned() Scope {
	s.Except = slices.DeleteFunc(slices.Clone(s.Except), func(name string) bool {
		return !slices.ContainsFunc(Nearest(name)[1:],
			func(wider string) bool { return slices.Contains(s.Names, wider) })
	})
	return s
}

// Named returns the scope without wildcards, and so without exceptions.
func (s Scope) Named() Scope {
	return Scope{Names: slices.DeleteFunc(slices.Clone(s.Names), wildcard)}
}

// Plain reports whether the scope has neither wildcards nor exceptions.
func (s Scope) Plain() bool {
	return len(s.Except) == 0 && !slices.ContainsFunc(s.Names, wildcard)
}

func wildcard(name string) bool { return strings.HasPrefix(name, "*") }

func with(names []string, name string) []string {
	if slices.Contains(names, name) {
		return names
	}
	names = append(slices.Clone(names), name)
	slices.Sort(names)
	return names
}

func without(names []string, name string) []string {
	return slices.DeleteFunc(slices.Clone(names), func(is string) bool { return is == name })
}

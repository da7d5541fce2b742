package manifests

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
)

// Servers are the members of the cluster that are servers.
type Servers interface {
	// Names returns the names of all. It is empty while they are not known.
	Names() []string
}

// gone returns the sources whose servers have been removed from the cluster. Servers that are down
// are members. Without its own name in it, a list of members is not believed.
func gone(sources []Source, members []string, self string) []Source {
	if !slices.Contains(members, self) {
		return nil
	}
	var out []Source
	for _, s := range sources {
		if !slices.Contains(members, s.Server) {
			out = append(out, s)
		}
	}
	return out
}

// counted returns the source whose content counts: the one that changed last. ok is false without
// any.
func counted(sources []Source) (source Source, ok bool) {
	if len(sources) == 0 {
		return Source{}, false
	}
	return slices.MaxFunc(sources, func(a, b Source) int {
		return cmp.Or(cmp.Compare(a.Turn, b.Turn), cmp.Compare(a.Server, b.Server))
	}), true
}

// NextTurn is the turn of a content that a server has just found in its file.
func NextTurn(sources []Source) int64 {
	var turn int64
	for _, s := range sources {
		turn = max(turn, s.Turn)
	}
	return turn + 1
}

// differing describes the servers whose content is not the one that counts; "" if there are none.
func differing(sources []Source, counts Source) string {
	var like, unlike []string
	for _, s := range sources {
		if s.Hash == counts.Hash {
			like = append(like, s.Server)
		} else {
			unlike = append(unlike, s.Server)
		}
	}
	if len(unlike) == 0 {
		return ""
	}
	slices.Sort(like)
	slices.Sort(unlike)
	return fmt.Sprintf("The content of %s counts, which changed last; the file differs on %s",
		strings.Join(like, ", "), strings.Join(unlike, ", "))
}

// without returns the references that are not among others.
func without(all, others []Ref) []Ref {
	var out []Ref
	for _, r := range all {
		if !slices.ContainsFunc(others, func(o Ref) bool { return same(r, o) }) {
			out = append(out, r)
		}
	}
	return out
}

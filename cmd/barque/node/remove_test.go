package node

import (
	"context"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"

	"github.com/barque/barque/raftstore"
)

// members is a store of two members.
type members struct {
	removed []string
	err     error
}

func (m *members) Members() []raftstore.Member {
	return []raftstore.Member{{ID: "s1.x", Name: "s1"}, {ID: "s2.y", Name: "s2"}}
}

func (m *members) Remove(_ context.Context, id, _ string) error {
	m.removed = append(m.removed, id)
	return m.err
}

func TestRemoveMember(t *testing.T) {
	for name, c := range map[string]struct {
		method, server string
		err            error
		status         int
		want           string
		removed        []string
	}{
		"by its name":   {"DELETE", "s2", nil, 200, "", []string{"s2.y"}},
		"unknown":       {"DELETE", "s9", nil, 404, "no member", nil},
		"no name":       {"DELETE", "", nil, 404, "no member", nil},
		"refused":       {"DELETE", "s1", &raftstore.RefusedError{Reason: "no quorum would stay"}, 409, "no quorum", []string{"s1.x"}},
		"no leader":     {"DELETE", "s1", raftstore.ErrUnavailable, 503, "unavailable", []string{"s1.x"}},
		"another verb":  {"GET", "s2", nil, 405, "", nil},
		"not by its ID": {"DELETE", "s2.y", nil, 404, "no member", nil},
	} {
		t.Run(name, func(t *testing.T) {
			store, w := &members{err: c.err}, httptest.NewRecorder()
			membersHandler(store).ServeHTTP(w, httptest.NewRequest(c.method, MembersPath+"/"+c.server, nil))
			var answer Removal
			if err := json.Unmarshal(w.Body.Bytes(), &answer); err != nil && w.Code != http.StatusMethodNotAllowed {
				t.Fatalf("answer %q: %v", w.Body, err)
			}
			if w.Code != c.status || !strings.Contains(answer.Error, c.want) || !slices.Equal(store.removed, c.removed) {
				t.Fatalf("status %d, %+v, removed %v", w.Code, answer, store.removed)
			}
		})
	}
}

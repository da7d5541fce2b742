package verify

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// statusOf returns the status of servers s1, s2 and so on; nil is a server that does not answer.
func statusOf(stores ...*storeState) *status {
	s := new(status)
	for i, store := range stores {
		s.Members = append(s.Members, member{Name: fmt.Sprintf("s%d", i+1), Store: store, Problem: "it is away"})
	}
	return s
}

// TestSameState: different states at one revision are a broken promise. States at different
// revisions are not, and are not equal either.
func TestSameState(t *testing.T) {
	good, quarantined := &storeState{7, "a", ""}, &storeState{7, "a", "it differs"}
	for name, c := range map[string]struct {
		stores []*storeState // of s1, s2, s3; the third is not asked
		broken bool
		says   string
	}{
		"the same": {[]*storeState{good, good, {1, "not asked for", "not asked for"}}, false, ""},
		"another state": {[]*storeState{good, {7, "b", ""}}, true,
			"at revision 7 s1 has the hash a, and s2 has b"},
		"another revision":             {[]*storeState{good, {8, "b", ""}}, false, "s1 was at revision 7 and s2 at 8"},
		"in quarantine":                {[]*storeState{good, quarantined}, true, "s2 is in quarantine"},
		"in quarantine, behind others": {[]*storeState{good, {6, "a", "it differs"}}, true, "s2 is in quarantine"},
		"in quarantine, one is away":   {[]*storeState{nil, quarantined}, true, "s2 is in quarantine"},
		"one does not answer": {[]*storeState{good, nil}, false,
			"the store of s2 does not answer: it is away"},
		"one is not told of": {[]*storeState{good}, false, "does not tell of s2"},
		"none is told of":    {nil, false, "does not tell of s1"},
		"without a hash":     {[]*storeState{{7, "", ""}, {7, "", ""}}, false, "s1 tells no hash"},
	} {
		state, err := statusOf(c.stores...).same([]string{"s1", "s2"})
		var differ *stateError
		if errors.As(err, &differ) != c.broken || (err == nil) != (c.says == "") ||
			err != nil && !strings.Contains(err.Error(), c.says) || err == nil && state != "revision 7, hash a" {
			t.Errorf("%s: %q, %v", name, state, err)
		}
	}
	if state, err := statusOf(good).same(nil); err == nil {
		t.Errorf("no server is the same as itself: %q", state)
	}
	two := statusOf(&storeState{8, "x", ""}, good, &storeState{7, "b", ""})
	var differ *stateError
	if _, err := two.same([]string{"s1", "s2", "s3"}); !errors.As(err, &differ) {
		t.Errorf("two differ at one revision, and a third one is ahead: %v", err)
	}
}

// TestSameStateIsPolled: states at different revisions are asked for again. A contradiction is
// reported, also when it heals.
func TestSameStateIsPolled(t *testing.T) {
	same := statusOf(&storeState{9, "a", ""}, &storeState{9, "a", ""})
	behind := statusOf(&storeState{8, "b", ""}, &storeState{7, "a", ""})
	for name, c := range map[string]struct {
		answers            []*status // the last one repeats; nil: an error
		problems, unjudged int
	}{
		"at once":        {[]*status{same}, 0, 0},
		"after a while":  {[]*status{behind, nil, statusOf(&storeState{9, "a", ""}, nil), same}, 0, 0},
		"never":          {[]*status{behind}, 0, 1},
		"nobody answers": {[]*status{nil}, 0, 1},
		"divergence that heals": {[]*status{behind, statusOf(&storeState{8, "a", ""}, &storeState{8, "b", ""}), same},
			1, 0},
		"a quarantine that heals": {
			[]*status{statusOf(&storeState{8, "a", ""}, &storeState{8, "a", "it differs"}), same}, 1, 0},
	} {
		synctest.Test(t, func(t *testing.T) {
			n := 0
			k := sameState(t.Context(), time.Minute, []string{"s1", "s2"}, func(context.Context) (*status, error) {
				s := c.answers[min(n, len(c.answers)-1)]
				if n++; s == nil {
					return nil, errors.New("nobody")
				}
				return s, nil
			})
			if len(k.Problems) != c.problems || len(k.Unjudged) != c.unjudged || n < len(c.answers)-c.problems {
				t.Errorf("%s: %+v after %d answers", name, k, n)
			}
		})
	}
}

package integrity

import (
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/barque/barque/raftstore/disk"
	"github.com/barque/barque/raftstore/group"
	"github.com/barque/barque/raftstore/kv"
)

func TestMajority(t *testing.T) {
	a, b, c := state{9, 1}, state{9, 2}, state{8, 1}
	for name, test := range map[string]struct {
		voters int
		said   []state // by voters that answer
		others []state // by members without a vote
		want   state
		agree  int
	}{
		"all agree":                         {3, []state{a, a, a}, nil, a, 3},
		"one differs":                       {3, []state{a, b, a}, nil, a, 2},
		"one has another revision":          {3, []state{c, a, a}, nil, a, 2},
		"one is away":                       {3, []state{a, a}, nil, a, 2},
		"two differ and one is away":        {3, []state{a, b}, nil, state{}, 0},
		"all differ":                        {3, []state{a, b, c}, nil, state{}, 0},
		"one of two":                        {2, []state{a, b}, nil, state{}, 0},
		"half is no majority":               {4, []state{a, a, b, b}, nil, state{}, 0},
		"a server without a vote is none":   {3, []state{a, b}, []state{b, b}, state{}, 0},
		"the only voter is right":           {1, []state{a}, []state{b, b}, a, 1},
		"most of those that answer are few": {5, []state{a, a, b}, nil, state{}, 0},
	} {
		var opinions []opinion
		for _, s := range test.said {
			opinions = append(opinions, opinion{group.Member{Voter: true}, s})
		}
		for _, s := range test.others {
			opinions = append(opinions, opinion{group.Member{}, s})
		}
		if got, agree := majority(opinions, test.voters); got != test.want || agree != test.agree {
			t.Errorf("%s: %v by %d, want %v by %d", name, got, agree, test.want, test.agree)
		}
	}
}

// TestComparisonAsksNobodyTwice asks with a node that cannot ask any member.
func TestComparisonAsksNobodyTwice(t *testing.T) {
	members := []group.Member{{ID: "a", Self: true}, {ID: "b"}, {ID: "c"}}
	c := &comparison{answers: map[string]stateAnswer{"b": {}, "c": {}}}
	if new(Guard).askStates(t.Context(), c, members) {
		t.Error("there is an answer that nobody was asked for")
	}
}

// TestQuarantineMark reads a written mark back, and takes one that cannot be read for a mark.
func TestQuarantineMark(t *testing.T) {
	dir := t.TempDir()
	q, err := openQuarantine(dir, "")
	if err != nil || q.Err() != nil {
		t.Fatalf("without a mark: %v, %v", q.Err(), err)
	}
	for content, want := range map[string]string{
		`{"reason": "because"}`: "because",
		`{`:                     "cannot be read",
		``:                      "cannot be read",
	} {
		if err := os.WriteFile(disk.QuarantinePath(dir), []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
		q, err := openQuarantine(dir, "")
		if err != nil {
			t.Fatal(err)
		}
		if err := q.Err(); !errors.Is(err, kv.ErrQuarantined) || !strings.Contains(fmt.Sprint(err), want) {
			t.Errorf("mark %q: %v", content, err)
		}
		if q.begin("another") || q.Why() == "another" {
			t.Error("the first reason stays")
		}
	}
}

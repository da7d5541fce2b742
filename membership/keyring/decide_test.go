package keyring

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/barque/barque/membership/rollover"
)

// model is a cluster on paper: what each member reads and sends with, while a rotation is moved on,
// undone, forced, and members go and come back at any moment.
type model struct {
	rng     *rand.Rand
	doc     document
	keys    int // made so far
	members []*modelMember
	now     time.Time
}

type modelMember struct {
	name  string
	alive bool
	ring  []string
	gen   uint64
}

func (m *model) take(member *modelMember) {
	member.ring, member.gen = m.doc.ids(), m.doc.Generation
}

func (m *model) view() []rollover.Member {
	var out []rollover.Member
	for _, member := range m.members {
		out = append(out, rollover.Member{Name: member.name, Alive: member.alive, Generation: member.gen})
	}
	return out
}

// lead does what a leader that has the newest keys decides.
func (m *model) lead() {
	if rollover.Decide(m.doc.Generation, string(m.doc.Step), m.doc.holdUp(m.view(), m.now), m.doc.Generation,
		0) == rollover.Advance {
		m.doc = m.doc.next(m.now)
	}
}

// act does one thing at random and says what.
func (m *model) act() string {
	member := m.members[m.rng.IntN(len(m.members))]
	switch m.rng.IntN(8) {
	case 0, 1, 2:
		if member.alive {
			m.take(member)
		}
		return member.name + " takes the newest keys"
	case 3, 4:
		m.now = m.now.Add(time.Second)
		m.lead()
		return fmt.Sprintf("the leader moves on: %q", m.doc.Step)
	case 5:
		if next, err := m.doc.undo(m.now); err == nil {
			m.doc = next
		}
		return fmt.Sprintf("undo: %q", m.doc.Step)
	case 6:
		if m.doc.Step == AtRest {
			m.keys++
			m.doc = m.doc.step(Add, m.now, m.doc.Keys[0], sealedKey{ID: fmt.Sprint("k", m.keys)})
		}
		return fmt.Sprintf("rotate: %q", m.doc.Step)
	default:
		if member.alive = !member.alive; member.alive {
			m.take(member) // it asks a server before anybody hears of it
		}
		return fmt.Sprintf("%s lives: %t", member.name, member.alive)
	}
}

// understood tells whether every living member reads what each other living one sends.
func (m *model) understood() error {
	for _, from := range m.members {
		for _, to := range m.members {
			if from.alive && to.alive && !slices.Contains(to.ring, from.ring[0]) {
				return fmt.Errorf("%s sends with %s, which %s does not have: %v", from.name, from.ring[0], to.name,
					to.ring)
			}
		}
	}
	return nil
}

func TestLivingMembersAlwaysUnderstandEachOther(t *testing.T) {
	rotations := 0
	for seed := range uint64(300) {
		m := &model{rng: rand.New(rand.NewPCG(seed, 1)), doc: document{Keys: []sealedKey{{ID: "k0"}}},
			now: time.Unix(1e9, 0)}
		for i := range 5 {
			m.members = append(m.members, &modelMember{name: fmt.Sprint("m", i), alive: true, ring: []string{"k0"}})
		}
		var journal []string
		for range 400 {
			before := m.doc
			journal = append(journal, m.act())
			if m.doc.Generation < before.Generation {
				t.Fatalf("seed %d: the generation went back:\n%s", seed, strings.Join(journal, "\n"))
			}
			if before.Step == Remove && m.doc.Step == AtRest {
				rotations++
			}
			if err := m.understood(); err != nil {
				t.Fatalf("seed %d: %v:\n%s", seed, err, strings.Join(journal, "\n"))
			}
		}
		// Left alone, everything comes to rest with one key.
		for range 5 {
			for _, member := range m.members {
				m.take(member)
			}
			m.lead()
		}
		if m.doc.Step != AtRest || len(m.doc.Keys) != 1 {
			t.Fatalf("seed %d: stays in step %q with %v", seed, m.doc.Step, m.doc.ids())
		}
	}
	if rotations < 100 {
		t.Fatalf("only %d rotations came to an end", rotations)
	}
}

func TestWhoIsWaitedFor(t *testing.T) {
	now := time.Unix(1e9, 0)
	d := document{Generation: 5, Step: Add, StepBegan: now, Keys: []sealedKey{{ID: "old"}, {ID: "new"}}}
	done, late := rollover.Member{Name: "done", Alive: true, Generation: 5},
		rollover.Member{Name: "late", Alive: true, Generation: 4}
	ahead := rollover.Member{Name: "ahead", Alive: true, Generation: 6}
	dead, barred := rollover.Member{Name: "dead", Generation: 4},
		rollover.Member{Name: "barred", Alive: true, Generation: 4, Barred: "removed"}
	forced := d
	forced.Forced = true
	for what, c := range map[string]struct {
		doc     document
		members []rollover.Member
		after   time.Duration
		goes    bool
	}{
		"all have done it":             {d, []rollover.Member{done, ahead}, 0, true},
		"one has not":                  {d, []rollover.Member{done, late}, time.Hour, false},
		"the dead are not":             {d, []rollover.Member{done, dead}, 0, true},
		"nor those who get no key":     {d, []rollover.Member{done, barred}, 0, true},
		"forced, and not yet":          {forced, []rollover.Member{done, late}, forcePatience - 1, false},
		"forced, and long enough":      {forced, []rollover.Member{done, late}, forcePatience, true},
		"forced, and the clock is off": {forced, []rollover.Member{done, late}, -time.Hour, false},
	} {
		if late := c.doc.holdUp(c.members, now.Add(c.after)); (len(late) == 0) != c.goes {
			t.Errorf("%s: it waits for %v", what, late)
		}
	}
	if got := waiting([]rollover.Member{late, done, dead, barred}, 5); !slices.Equal(got, []string{"late"}) {
		t.Errorf("waiting for %v", got)
	}
	if got := missing([]rollover.Member{late, dead, barred}); len(got) != 1 || got[0].Name != "dead" {
		t.Errorf("missing %v", got)
	}
}

func TestUndoIsRefusedWhenItIsTooLate(t *testing.T) {
	for _, step := range []Step{AtRest, Remove} {
		d := document{Step: step, Keys: []sealedKey{{ID: "new"}}}
		var refused *RefusedError
		if _, err := d.undo(time.Now()); !errors.As(err, &refused) {
			t.Errorf("%q: %v", step, err)
		}
	}
}

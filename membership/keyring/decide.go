package keyring

import (
	"cmp"
	"slices"
	"time"
)

// Member is one member of the cluster, by what this server knows.
type Member struct {
	Name  string
	Role  string
	Alive bool
	// State in words: alive, dead, left, or unknown to the pool.
	State string
	// Generation of the keys that it says it uses.
	Generation uint64
	// Barred says why it does not get keys: it does not belong to the cluster any more. Nobody
	// waits for it.
	Barred string
}

// forcePatience is how long a forced rotation waits for members in each step.
const forcePatience = 30 * time.Second

// waiting returns the living members that have not come to the generation.
func waiting(members []Member, generation uint64) []string {
	var names []string
	for _, m := range members {
		if m.Alive && m.Barred == "" && m.Generation < generation {
			names = append(names, m.Name)
		}
	}
	slices.Sort(names)
	return names
}

// missing returns the members of the cluster that do not live.
func missing(members []Member) []Member {
	out := slices.DeleteFunc(slices.Clone(members), func(m Member) bool { return m.Alive || m.Barred != "" })
	slices.SortFunc(out, func(a, b Member) int { return cmp.Compare(a.Name, b.Name) })
	return out
}

// advance returns what follows the document when all is well, or nil while members are waited for
// and at rest.
func (d *document) advance(members []Member, now time.Time) *document {
	if d.Step == AtRest {
		return nil
	}
	if late := waiting(members, d.Generation); len(late) > 0 && (!d.Forced || now.Sub(d.StepBegan) < forcePatience) {
		return nil
	}
	switch d.Step {
	case Add:
		return d.step(Use, now, d.Keys[1], d.Keys[0])
	case Use:
		return d.step(Remove, now, d.Keys[0])
	case Back:
		return d.step(Withdraw, now, d.Keys[0])
	default: // Remove, Withdraw: the keys are those that stay
		next := *d
		next.Step, next.Forced, next.Began, next.StepBegan = AtRest, false, time.Time{}, time.Time{}
		return &next
	}
}

// step returns the document of the next generation, with the keys.
func (d *document) step(s Step, now time.Time, keys ...sealedKey) *document {
	next := *d
	next.Generation++
	next.Step, next.StepBegan, next.Keys = s, now, keys
	return &next
}

// undo returns the document that takes the rotation back.
func (d *document) undo(now time.Time) (*document, error) {
	switch d.Step {
	case Add:
		return d.step(Withdraw, now, d.Keys[0]), nil
	case Use:
		return d.step(Back, now, d.Keys[1], d.Keys[0]), nil
	case Back, Withdraw:
		return d, nil
	case Remove:
		return nil, &RefusedError{"members have begun to drop the old key, so there is no way back; rotate again to get another key"}
	default:
		return nil, &RefusedError{"no rotation is under way"}
	}
}

// RefusedError is returned when something would do harm or makes no sense. Nothing was changed.
type RefusedError struct{ Reason string }

func (e *RefusedError) Error() string { return e.Reason }

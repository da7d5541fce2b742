package keyring

import (
	"cmp"
	"slices"
	"time"

	"github.com/barque/barque/membership/rollover"
)

// forcePatience is how long a forced rotation waits for members in each step.
const forcePatience = 30 * time.Second

// waiting returns the living members that have not come to the generation.
func waiting(members []rollover.Member, generation uint64) []string {
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
func missing(members []rollover.Member) []rollover.Member {
	out := slices.DeleteFunc(slices.Clone(members), func(m rollover.Member) bool { return m.Alive || m.Barred != "" })
	slices.SortFunc(out, func(a, b rollover.Member) int { return cmp.Compare(a.Name, b.Name) })
	return out
}

// holdUp returns the members that the next step waits for.
func (d document) holdUp(members []rollover.Member, now time.Time) []string {
	if d.Forced && now.Sub(d.StepBegan) >= forcePatience {
		return nil
	}
	return waiting(members, d.Generation)
}

// next returns the document of the next step.
func (d document) next(now time.Time) document {
	switch d.Step {
	case Add:
		return d.step(Use, now, d.Keys[1], d.Keys[0])
	case Use:
		return d.step(Remove, now, d.Keys[0])
	case Back:
		return d.step(Withdraw, now, d.Keys[0])
	default: // Remove, Withdraw: the keys are those that stay
		d.Step, d.Forced, d.Began, d.StepBegan = AtRest, false, time.Time{}, time.Time{}
		return d
	}
}

// step returns the document of the next generation, with the keys.
func (d document) step(s Step, now time.Time, keys ...sealedKey) document {
	d.Generation++
	d.Step, d.StepBegan, d.Keys = s, now, keys
	return d
}

// undo returns the document that takes the rotation back.
func (d document) undo(now time.Time) (document, error) {
	switch d.Step {
	case Add:
		return d.step(Withdraw, now, d.Keys[0]), nil
	case Use:
		return d.step(Back, now, d.Keys[1], d.Keys[0]), nil
	case Back, Withdraw:
		return d, nil
	case Remove:
		return d,
			&RefusedError{
				"members have begun to drop the old key, so there is no way back; rotate again to get another key"}
	default:
		return d, &RefusedError{"no rotation is under way"}
	}
}

// RefusedError is returned when something would do harm or makes no sense. Nothing was changed.
type RefusedError struct{ Reason string }

func (e *RefusedError) Error() string { return e.Reason }

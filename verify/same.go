package verify

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"
)

// A stateError is returned when servers have states that contradict each other.
type stateError struct{ text string }

func (e *stateError) Error() string { return e.text }

// same checks that all servers that were reachable at the start have the same state.
func (c *checking) same(ctx context.Context) {
	k := sameState(ctx, settleTime, c.report.Servers, c.status)
	if ctx.Err() != nil && len(k.Problems) == 0 {
		return // the caller reports the interruption
	}
	c.note(k)
}

// sameState asks for the servers' states until they can be compared. The first contradiction ends
// it: a server that adopts the others' state later has had a wrong one all the same.
func sameState(
	ctx context.Context, limit time.Duration, servers []string, ask func(context.Context) (*status, error),
) Check {
	k := Check{Name: "all these servers have the same state"}
	var differ *stateError
	err := until(ctx, limit, func(ctx context.Context) error {
		s, err := ask(ctx)
		if err != nil {
			return err
		}
		if k.Detail, err = s.same(servers); errors.As(err, &differ) {
			return nil
		}
		return err
	})
	switch {
	case differ != nil:
		k.Problems = []string{differ.Error()}
	case err != nil:
		k.Unjudged = []string{err.Error()}
	}
	return k
}

// same returns the state of all the servers. A *stateError is a broken promise, and comes before
// any other error. Other errors are none: while clients write, servers answer at different
// revisions.
func (s *status) same(servers []string) (state string, err error) {
	at := make(map[uint64]int) // revision: the first member that has it
	first := -1
	seen := make(map[string]bool)
	for i, m := range s.Members {
		if !slices.Contains(servers, m.Name) {
			continue
		}
		seen[m.Name] = true
		if m.Store == nil {
			err = errors.Join(err, fmt.Errorf("the store of %s does not answer: %s", m.Name, m.Problem))
			continue
		}
		if m.Store.Quarantined != "" {
			return "", &stateError{fmt.Sprintf("%s is in quarantine: %s", m.Name, m.Store.Quarantined)}
		}
		if m.Store.StateHash == "" {
			err = errors.Join(err, fmt.Errorf("%s tells no hash of its state", m.Name))
			continue
		}
		n, ok := at[m.Store.Revision]
		switch {
		case ok && s.Members[n].Store.StateHash != m.Store.StateHash:
			return "", &stateError{fmt.Sprintf("at revision %d %s has the hash %s, and %s has %s",
				m.Store.Revision, s.Members[n].Name, s.Members[n].Store.StateHash, m.Name, m.Store.StateHash)}
		case !ok && first >= 0:
			err = errors.Join(err,
				fmt.Errorf(
					"%s was at revision %d and %s at %d, whenever they were asked: others write too much to compare them",
					s.Members[first].Name, s.Members[first].Store.Revision, m.Name, m.Store.Revision))
		case first < 0:
			first = i
		}
		if !ok {
			at[m.Store.Revision] = i
		}
	}
	for _, name := range servers {
		if !seen[name] {
			err = errors.Join(err, fmt.Errorf("the cluster's status does not tell of %s", name))
		}
	}
	if err == nil && first < 0 {
		err = errors.New("there is no server to compare")
	}
	if err != nil {
		return "", err
	}
	return fmt.Sprintf("revision %d, hash %s", s.Members[first].Store.Revision, s.Members[first].Store.StateHash), nil
}

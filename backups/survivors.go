package backups

import (
	"fmt"
	"slices"
	"strings"

	"github.com/barque/barque/raftstore"
)

// Survivor is the state in a data directory, or in a copy of one.
type Survivor struct {
	Name    string `json:"name"`
	DataDir string `json:"dataDir"`
	*raftstore.Report
	// Recovering is the new cluster of an unfinished recovery here.
	Recovering string `json:"recovering,omitempty"`
}

// UnfitError is the reason why a directory is not the one to recover.
type UnfitError struct{ Reason string }

func (e *UnfitError) Error() string { return e.Reason }

// Choose checks that the first of the survivors is the right one to recover.
func Choose(all []Survivor) error {
	first := all[0]
	if err := first.fit(); err != nil || first.Recovering != "" {
		return err // one in recovery is past the choice
	}
	if votesAlone(first.Members) {
		return unfit(
			"%s is the only server of cluster %s that votes, so there is no quorum to recover: start it, and nothing is lost", first.Name, first.ClusterID)
	}
	for _, s := range all[1:] {
		switch {
		case s.ClusterID != first.ClusterID:
			return unfit("%s is of cluster %s and %s is of cluster %s: give directories of one cluster", s.DataDir,
				s.ClusterID, first.DataDir, first.ClusterID)
		case s.fit() == nil && s.Newer(first.Report):
			return unfit(
				"%s has more than %s: its log ends with entry %d of term %d, the other one's with entry %d of term %d. Recover that one",
				s.DataDir, first.DataDir, s.LastIndex, s.LastTerm, first.LastIndex, first.LastTerm)
		}
	}
	return nil
}

// best returns the survivor that Choose accepts as the first. If it accepts none, the error has the
// reason for each. If GoesOn names another cluster, the result is only right if that cluster is
// abandoned.
func best(all []Survivor) (*Survivor, error) {
	best := -1
	for i, s := range all {
		if s.Recovering != "" {
			return &all[i], nil
		}
		if s.fit() == nil && (best < 0 || s.Newer(all[best].Report)) {
			best = i
		}
	}
	if best < 0 {
		var reasons []string
		for _, s := range all {
			reasons = append(reasons, s.fit().Error())
		}
		return nil, unfit("%s", strings.Join(reasons, "; "))
	}
	if err := Choose(slices.Concat(all[best:best+1], all[:best], all[best+1:])); err != nil {
		return nil, err
	}
	return &all[best], nil
}

// goesOn returns the successor of the survivor's cluster, in the view of any directory; nil without
// one.
func goesOn(of *Survivor, all []Survivor) *raftstore.Succession {
	if of.Superseded != nil {
		return of.Superseded
	}
	for _, s := range all {
		if s.Superseded != nil && s.Superseded.Cluster == of.ClusterID {
			return s.Superseded
		}
	}
	return nil
}

func unfit(format string, args ...any) error { return &UnfitError{fmt.Sprintf(format, args...)} }

// fit returns the reason against recovering the directory, regardless of the others.
func (s *Survivor) fit() error {
	switch {
	case s.Recovering != "":
		return nil
	case s.Quarantined != "":
		return unfit("the state of %s is known to be wrong: %s", s.DataDir, s.Quarantined)
	case s.Removed != nil:
		return unfit("%s was taken out of the cluster at %s, so it lacks all later writes", s.DataDir, s.Removed.At)
	case !slices.ContainsFunc(s.Members, func(m raftstore.Member) bool { return m.Self }):
		return unfit("%s is not of a member: it never had all of the data", s.DataDir)
	}
	return nil
}

// votesAlone reports whether the server is the only voter. A recovery would only exclude the
// others.
func votesAlone(members []raftstore.Member) bool {
	others := slices.ContainsFunc(members, func(m raftstore.Member) bool { return m.Voter && !m.Self })
	return !others && slices.ContainsFunc(members, func(m raftstore.Member) bool { return m.Voter && m.Self })
}

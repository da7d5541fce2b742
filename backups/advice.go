package backups

import "fmt"

// Notes are what is to be known of a directory before anything is done with it.
func (s *Survivor) Notes() []string {
	var out []string
	if s.Recovering != "" {
		out = append(out, fmt.Sprintf("a recovery as cluster %s was begun; run the command again, or start the server, to finish it", s.Recovering))
	}
	if s.Quarantined != "" {
		out = append(out, "its state is known to be wrong: "+s.Quarantined)
	}
	if s.Superseded != nil {
		out = append(out, fmt.Sprintf("%s; recover it only if that one is given up for good", s.Superseded))
	}
	if s.Removed != nil {
		out = append(out, "it was taken out of the cluster: "+s.Removed.Why)
	}
	return out
}

// Recommendation tells which of them is to be recovered, if one is; empty where there is no choice,
// and nothing against it but what is told already.
func Recommendation(all []Survivor) string {
	best, err := best(all)
	switch {
	case err != nil:
		return fmt.Sprintf("none of them is to be recovered: %s", err)
	case len(all) == 1:
		return ""
	case best.Recovering != "":
		return fmt.Sprintf("%s is the one to go on with: its recovery was begun", best.Name)
	}
	if o := goesOn(best, all); o != nil {
		return fmt.Sprintf("recover none of them while cluster %s goes on; if that one is given up for good, recover %s, which has the most", o.Successor, best.Name)
	}
	return fmt.Sprintf("%s has the most: recover that one", best.Name)
}

// OneBefore warns of a cluster that goes on in place of the same one already.
func OneBefore(all []Survivor) string {
	o := goesOn(&all[0], all)
	if o == nil {
		return ""
	}
	agents := "Its agents follow this one."
	if all[0].Superseded == nil { // it will not know that one as a predecessor
		agents = "Its agents must be started with --rejoin."
	}
	return fmt.Sprintf("- Cluster %s goes on in place of its cluster already, without this server. What that one has is lost,\n"+
		"  and all of its servers must stop for good: stop them first. %s\n", o.Successor, agents)
}

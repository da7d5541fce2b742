package backups

import (
	"fmt"
	"io"
	"slices"
	"strings"
)

// WriteSurvivors prints the state in the directories, and the one to recover.
func WriteSurvivors(w io.Writer, all []Survivor) error {
	fmt.Fprintln(w, "SERVER\tCLUSTER\tLAST TERM\tLAST ENTRY\tREVISION\tKEYS\tSNAPSHOT AT\tMEMBERS\tDATA DIRECTORY")
	for _, s := range all {
		var members []string
		for _, m := range s.Members {
			name := m.Name
			if !m.Voter {
				name += " (no vote)"
			}
			members = append(members, name)
		}
		fmt.Fprintf(w, "%s\t%s\t%d\t%d\t%d\t%d\t%d\t%s\t%s\n", s.Name, s.ClusterID, s.LastTerm, s.LastIndex, s.Revision,
			s.Keys, s.SnapshotIndex, strings.Join(members, ","), s.DataDir)
	}
	for i := range all {
		for _, note := range all[i].Notes() {
			fmt.Fprintf(w, "\n%s: %s\n", all[i].Name, note)
		}
	}
	if text := Recommendation(all); text != "" {
		fmt.Fprintf(w, "\n%s\n", text)
	}
	return nil
}

// Consequences describes the losses of recovering the first survivor. The operator must agree to
// them.
func Consequences(all []Survivor) string {
	first := all[0]
	var lost []string
	for _, m := range first.Members {
		if !m.Self {
			lost = append(lost, m.Name)
		}
	}
	slices.Sort(lost)
	return fmt.Sprintf(`%s becomes the only server of a new cluster, with all that its disk has: revision %d, %d keys.

- Writes that only the others had (%s) are lost, also ones that were acknowledged.
- Writes that this server has and that were never acknowledged count from now on.
- The others are shut out for good, also if they serve: each stops when it meets this one. Each must join again
  with --wipe. Agents follow by themselves.
%s- When most servers can be started again, answer no and start them instead: nothing is lost then.
`, first.Name, first.Revision, first.Keys, strings.Join(lost, ", "), OneBefore(all))
}

// Recovered is the result of a recovery.
type Recovered struct {
	Server  string `json:"server"`
	DataDir string `json:"dataDir"`
	Cluster string `json:"cluster"`
	Was     string `json:"was"`
}

// Write prints the remaining steps.
func (r *Recovered) Write(w io.Writer) error {
	_, err := fmt.Fprintf(w, `%s is the only server of the new cluster %s now. The remaining steps:

1. Start it:                 barque server --data-dir %s
2. Make a token there:       barque token create --role server
3. On each other server:     barque server --wipe --join https://ADDRESS-OF-%s:6443 --token TOKEN
4. For machines that are gone: barque kubectl delete node NAME

Agents that know its address follow by themselves, within two minutes.`, r.Server, r.Cluster, r.DataDir, r.Server)
	return err
}

// Notes are facts about a directory that an operator needs before a change.
func (s *Survivor) Notes() []string {
	var out []string
	if s.Recovering != "" {
		out = append(out,
			fmt.Sprintf("a recovery as cluster %s was begun; run the command again, or start the server, to finish it",
				s.Recovering))
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

// Recommendation names the survivor to recover, if any. It is empty if there is only one and
// nothing else speaks against it.
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
		return fmt.Sprintf(
			"recover none of them while cluster %s goes on; if that one is given up for good, recover %s, which has the most", o.Successor, best.Name)
	}
	return fmt.Sprintf("%s has the most: recover that one", best.Name)
}

// OneBefore warns of an existing successor of the same cluster.
func OneBefore(all []Survivor) string {
	o := goesOn(&all[0], all)
	if o == nil {
		return ""
	}
	agents := "Its agents follow this one."
	if all[0].Superseded == nil { // it will not count that one as a predecessor
		agents = "Its agents must be started with --rejoin."
	}
	return fmt.Sprintf(
		"- Cluster %s goes on in place of its cluster already, without this server. What that one has is lost,\n"+
			"  and all of its servers must stop for good: stop them first. %s\n", o.Successor, agents)
}

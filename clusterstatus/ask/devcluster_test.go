package ask

import (
	"slices"
	"strings"
	"testing"

	"github.com/barque/barque/clusterstatus"
	"github.com/barque/barque/clusterstatus/examination"
	"github.com/barque/barque/devcluster"
	"github.com/barque/barque/raftstore"
)

// TestMendsOfADevCluster: they are dev commands, for the state that the node is in, and run here.
func TestMendsOfADevCluster(t *testing.T) {
	here := t.TempDir()
	t.Chdir(here)
	t.Setenv("SUDO_UID", "")
	state := &devcluster.Status{
		Nodes: []devcluster.NodeStatus{{Name: "s1", Role: devcluster.Server, State: devcluster.Running},
			{Name: "s2", Role: devcluster.Server, State: devcluster.Paused},
			{Name: "s3", Role: devcluster.Server, State: devcluster.Dead},
			{Name: "a1", Role: devcluster.Agent, State: devcluster.Dead}}}
	p := devProcedures(here+"/c", state)
	cut := devProcedures(here+"/c", &devcluster.Status{Nodes: state.Nodes[:1], Partitioned: true})
	unknown := devProcedures(here+"/c", nil)
	for what, c := range map[string]struct{ got, want string }{
		"running":           {p.Look("s1", "server"), "tail -n 100 c/s1.log"},
		"paused":            {p.Look("s2", "server"), "dev resume s2 --dir c"},
		"dead":              {p.Look("s3", "server"), "dev start s3 --dir c"},
		"a dead agent":      {p.Look("a1", "agent"), "dev start a1 --dir c"},
		"no such node":      {p.Look("s9", "server"), "dev status --dir c"},
		"cut off":           {cut.Look("s1", "server"), "dev heal --dir c"},
		"not known":         {unknown.Look("s1", "server"), "dev status --dir c"},
		"the others":        {p.Start, "dev start s3 --dir c"},
		"the others, too":   {p.Start, "dev resume s2 --dir c; "},
		"all run, and cut":  {cut.Start, "dev heal --dir c"},
		"who is not known":  {unknown.Start, "dev start NODE --dir c"},
		"recover":           {p.Recover, "--inspect --data-dir c/s1 --data-dir c/s2 --data-dir c/s3"},
		"a new server":      {p.JoinAnew("s3"), "dev start --wipe s3 --dir c"},
		"an agent again":    {p.Again("a1"), "dev start a1 --dir c"},
		"in its network":    {p.From("s1", "ping 10.0.0.1"), "dev exec s1 --dir c -- ping 10.0.0.1"},
		"the errors":        {p.Errors("s1"), "grep level=ERROR c/s1.log"},
		"lines of the log":  {p.Logged("s1", "oidc"), "grep oidc c/s1.log"},
		"a restart":         {p.Restart("s1"), "dev start s1 --dir c"},
		"all, where it ran": {p.Any, "dev status --dir c"},
	} {
		if !strings.Contains(c.got, c.want) || strings.Contains(c.got, "systemctl") ||
			strings.Contains(c.got, "journalctl") {
			t.Errorf("%s: %q, want %q", what, c.got, c.want)
		}
	}
	e := examination.Examination{Procedures: p}
	e.Add(clusterstatus.Warning{On: "s1", Mend: p.Errors("s1"), Text: "x"})
	if e.Findings[0].On != "" {
		t.Errorf("a dev command is to be run on %s", e.Findings[0].On)
	}
}

// TestVoters: who has a vote, and of whom the server has found that it is, or may be, of another
// cluster by now.
func TestVoters(t *testing.T) {
	own := new(raftstore.Status)
	o := &clusterstatus.Observation{Cluster: "old"}
	for _, server := range []string{"s1", "s2", "s3", "s4"} {
		p := raftstore.PeerStatus{
			Member: raftstore.Member{ID: server + ".x", Name: server, Address: server + ":6444", Voter: server != "s4",
				Self: server == "s1"}}
		if p.Member.Self {
			p.Status = own
		}
		o.Peers = append(o.Peers, p)
	}
	succession := &raftstore.Succession{Cluster: "old", Successor: "new", By: "s2.x"}
	for name, c := range map[string]struct {
		own  raftstore.Status
		want devcluster.Voter // s2
	}{
		"nothing": {raftstore.Status{}, devcluster.Voter{Name: "s2"}},
		"at its address": {
			raftstore.Status{Foreign: map[string]string{"s2:6444": "new", "s4:6444": "new", "elsewhere:6444": "new"}},
			devcluster.Voter{Name: "s2", Foreign: "new"}},
		"recovered": {raftstore.Status{Superseded: succession}, devcluster.Voter{Name: "s2", Foreign: "new"}},
	} {
		*own = c.own
		if got, want := voters(o), []devcluster.Voter{{Name: "s1"}, c.want, {Name: "s3"}}; !slices.Equal(got, want) {
			t.Errorf("%s: %v, want %v", name, got, want)
		}
	}
}

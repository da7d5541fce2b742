package clusterstatus

import (
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/barque/barque/membership/datakeys"
	"github.com/barque/barque/membership/exchange"
	"github.com/barque/barque/membership/gossip"
	"github.com/barque/barque/pki"
	"github.com/barque/barque/raftstore"
)

// promises breaks each part that `healthy` promises, as docs/operations.md lists them, in every way
// that the page has.
var promises = map[string][]func(w *world){
	"quorum": {
		func(w *world) { w.server("s1").Role = "follower" },
		func(w *world) { w.Peers, w.Nodes = w.Peers[:2], w.Nodes[:2] },
	},
	"servers": {
		func(w *world) { w.silence("s3", "refused") },
		func(w *world) { w.server("s1").Health[2] = raftstore.MemberHealth{ID: "s3.x", State: "leaving"} },
		func(w *world) { w.reports["s1"].Former = []FormerServer{{Name: "s4"}} },
	},
	"store": {
		func(w *world) { w.server("s2").Quarantined = "it differs" },
		func(w *world) { w.server("s2").Superseded = &raftstore.Succession{Successor: "other"} },
		func(w *world) { w.server("s1").Health[1].Lag, w.server("s1").Health[1].LagFor = 1, 11*time.Second },
		func(w *world) { w.server("s1").Health[1].Lag = 4097 },
		func(w *world) { w.server("s2").DiskError = "EIO" },
	},
	"disks": {
		func(w *world) { w.reports["s2"].Disk.Free = w.reports["s2"].Disk.Bytes/20 - 1 },
		func(w *world) { w.server("s2").DiskFull = true },
		func(w *world) { w.server("s2").DiskP50 = 51 * time.Millisecond },
	},
	"audit log": {
		func(w *world) { w.reports["s2"].AuditLosses = []AuditLoss{{Sink: "log", Events: 1, Last: time.Now()}} },
	},
	"space": {
		func(w *world) { w.server("s1").Space = "low" },
		func(w *world) { w.server("s1").Space = "full" },
	},
	"paths": {
		func(w *world) { w.server("s2").Detail.Ways[1].Error = "timeout" },
		func(w *world) { w.server("s2").Detail.Ways[1].RTT = 101 * time.Millisecond },
	},
	"gossip": {
		func(w *world) {
			w.Nodes = append(w.Nodes, NodeView{Node: "a1", Role: pki.RoleAgent, State: gossip.Dead})
		},
		func(w *world) { w.Nodes[2].State = gossip.Dead },
		func(w *world) {
			for name, state := range map[string]gossip.State{"s1": gossip.Alive, "s2": gossip.Dead,
				"s3": gossip.Alive} {
				w.reports[name].Nodes = []NodeView{{Node: "s3", State: state}}
			}
		},
		func(w *world) { w.reports["s1"].Apart = []ApartAgent{{Name: "a1"}} },
	},
	"nodes": {
		func(w *world) { w.unready("s2", pki.RoleServer) },
		func(w *world) { w.unready("a1", pki.RoleAgent) },
		func(w *world) { w.unready("foreign", "") },
		func(w *world) { w.agent("a1", "v1", "v1"); w.unregistered("a1", pki.RoleAgent) },
		func(w *world) { w.unregistered("s2", pki.RoleServer) },
		func(w *world) { w.Nodes[1].Faults = []string{"kubelet"} },
		func(w *world) {
			w.agents(gossip.Alive, "a1")
			w.reports["s1"].Profiles = []AgentProfile{{"a1", "none", "cis"}}
		},
	},
	"versions": {
		func(w *world) { w.server("s2").Version = "v2" },
		func(w *world) { w.agent("a1", "v1", "v2") },
	},
	"certificates": {
		func(w *world) { w.reports["s2"].Certificates[0].NotAfter = Noon },
		func(w *world) { w.reports["s2"].Certificates[0].Warning = "it should have been renewed" },
	},
	"exchange of the CA": {func(w *world) {
		w.reports["s1"].CA = &exchange.Status{Generation: 2, Step: pki.Spreading, Since: Noon.Add(-3 * time.Minute),
			Waiting: []string{"a1: it is off"}}
	}},
	"backups": {
		func(w *world) { w.reports["s2"].Backups.Newest.Created = Noon.AddDate(0, 0, -2) },
		func(w *world) { w.server("s2").Warnings = []string{"the scheduled backup failed"} },
		func(w *world) { w.reports["s2"].Backups.Refused = "no key" },
	},
	"data keys": {
		func(w *world) { w.reports["s2"].DataKeys = &datakeys.Progress{Problem: "no key"} },
		func(w *world) {
			w.reports["s1"].DataKeys = &datakeys.Progress{Step: datakeys.Rewrite, Began: Noon.Add(-11 * time.Minute),
				Waiting: []string{"s2"}}
		},
	},
	"local volumes": {func(w *world) { w.reports["s1"].Lost = []LostVolume{{Name: "pv-1", Node: "s2"}} }},
	"addresses": {
		func(w *world) { w.reports["s2"].Conflicts = []Conflict{{Address: "192.0.2.1", Last: Noon}} },
		func(w *world) {
			w.reports["s1"].Edge = &EdgeStatus{Pools: []PoolStatus{{Name: "lan", Problem: "it overlaps"}}}
		},
		func(w *world) {
			w.reports["s1"].Edge = &EdgeStatus{Waiting: []WaitingService{{Service: "ns/web", Reason: "PoolExhausted"}}}
		},
	},
	"settings": {
		func(w *world) { w.files("a", "b", "a") },
		func(w *world) { w.files("a", "", "a") },
		func(w *world) { w.files("a", "a", "a"); w.reports["s2"].Files[0].Problem = "it cannot be read" },
	},
	"CPU":    {func(w *world) { w.server("s2").Extension = 500 * time.Millisecond }},
	"clocks": {func(w *world) { w.reports["s2"].Time = Noon.Add(6 * time.Second) }},
	"calls of the API server": {
		func(w *world) { w.failing("ValidatingWebhookConfiguration", "hook") },
		func(w *world) { w.failing("MutatingWebhookConfiguration", "hook") },
		func(w *world) { w.failing("CustomResourceDefinition") },
		func(w *world) { w.failing("APIService") },
	},
}

func (w *world) unready(name, role string) {
	w.reports["s1"].Unready = []UnreadyNode{{Name: name, Role: role, Since: Noon.Add(-61 * time.Second)}}
}

func (w *world) unregistered(name, role string) {
	w.unready(name, role)
	w.reports["s1"].Unready[0].Missing = true
}

// files gives each server a configuration file with a content of that hash, or none.
func (w *world) files(hashes ...string) {
	for i, hash := range hashes {
		r := w.reports[fmt.Sprintf("s%d", i+1)]
		if r.Files = []ConfigFile{}; hash != "" {
			r.Files = append(r.Files, ConfigFile{Flag: "--audit-policy-file", Path: "/etc/p", Hash: hash})
		}
	}
}

func (w *world) failing(kind string, webhooks ...string) {
	w.reports["s1"].Failing = []FailingCall{
		{Kind: kind, Name: "x", Webhooks: webhooks, Service: "ns/x", Why: "no endpoint"}}
}

// TestPromises: `healthy` is said of no cluster in which a promised part is broken, and the page
// lists the parts that are tested.
func TestPromises(t *testing.T) {
	if w := newWorld(); Assemble(Noon, w.observe(t)).Health != Healthy {
		t.Fatal("the cluster is not healthy before anything is broken")
	}
	for part, breaks := range promises {
		for i, broken := range breaks {
			w := newWorld()
			broken(w)
			if s := Assemble(Noon, w.observe(t)); s.Health == Healthy || len(s.Warnings) == 0 {
				t.Errorf("%s, way %d: it is %s, with %v", part, i, s.Health, s.Warnings)
			}
		}
	}
	if got, want := promised(t), slices.Sorted(maps.Keys(promises)); !slices.Equal(got, want) {
		t.Errorf("docs/operations.md promises %q, tested are %q", got, want)
	}
}

// promised returns the parts in the table of the page, sorted.
func promised(t *testing.T) (parts []string) {
	t.Helper()
	page, err := os.ReadFile("../docs/operations.md")
	if err != nil {
		t.Fatal(err)
	}
	_, section, _ := strings.Cut(string(page), "### What `healthy` promises\n")
	section, _, _ = strings.Cut(section, "\n#")
	for line := range strings.Lines(section) {
		if cells := strings.Split(line, "|"); len(cells) > 2 {
			if part := strings.TrimSpace(cells[1]); part != "part" && part != "---" {
				parts = append(parts, part)
			}
		}
	}
	slices.Sort(parts)
	return parts
}

// Package layout checks which packages import which: the directions between the rooms, as
// docs/design.md has them.
package layout

import (
	"encoding/json"
	"errors"
	"io"
	"os/exec"
	"slices"
	"strings"
	"testing"
)

const module = "github.com/barque/barque/"

// ban forbids the packages of some rooms to import others. Rooms are first parts of paths.
type ban struct {
	from   []string
	to     []string // import paths, of ours without the module; a prefix of whole parts
	except []string // packages that may
	allow  []string // exceptions for all, below the forbidden paths
	reason string
}

var rooms = []string{"adminapi", "apiserver", "backups", "clusterstatus", "cmd", "cluster-test", "controllers",
	"devcluster", "edge", "examples", "internal", "kubelet", "machine", "membership",
	"network", "pki", "raftstore", "release", "scheduler", "upgrade", "verify"}

var bans = []ban{
	{from: without("cmd"), to: []string{"cmd"},
		reason: "cmd wires the rooms together; whoever imports it would be part of the wiring"},
	{from: []string{"cmd/barque"},
		to: []string{"raftstore", "crypto", "net/http", "golang.org/x/sys", "k8s.io/apimachinery/pkg/api/errors",
			"network/nodeaddr", "network/proxy", "network/routes"},
		except: []string{"cmd/barque/node"},
		allow:  []string{"raftstore/backup"}, // whose reports `barque snapshot` prints
		reason: "a command has flags, wiring and output; what an answer, an error or this machine means is said by the room that asks"},
	{from: []string{"internal"}, to: without("internal"),
		reason: "internal has helpers without domain words; everything may use it, so it may use nothing of ours"},
	{from: []string{"raftstore"}, to: without("raftstore", "internal"),
		reason: "the store is a product of its own: it knows keys and revisions, no Kubernetes objects and no other room"},
	{from: []string{"raftstore"}, to: []string{"k8s.io"},
		reason: "the store knows bytes, not objects"},
	{from: []string{"apiserver", "controllers", "scheduler", "kubelet", "network", "edge"}, to: operator,
		reason: "who serves the cluster or acts on it needs nothing that is there for operators"},
	{from: []string{"clusterstatus"},
		to:     without("clusterstatus", "raftstore", "membership", "network", "pki", "internal"),
		except: []string{"clusterstatus/ask", "clusterstatus/doctor"},
		reason: "it judges what it is handed; who asks the API or a machine could not be judged by it when they fail"},
	{from: []string{"clusterstatus"}, to: []string{"k8s.io/client-go", "k8s.io/apiserver", "os", "net/http"},
		except: []string{"clusterstatus/ask", "clusterstatus/doctor"},
		reason: "it is pure: whoever calls it has asked already"},
	{from: []string{"clusterstatus"}, to: []string{"clusterstatus/ask", "clusterstatus/doctor"},
		except: []string{"clusterstatus/ask", "clusterstatus/doctor"},
		reason: "the packages that ask servers import it"},
	{from: []string{"clusterstatus/ask", "clusterstatus/doctor"},
		to: without("adminapi", "backups", "clusterstatus", "devcluster", "raftstore", "membership", "pki",
			"internal"),
		allow:  []string{"network/faults"}, // the events of nodes
		reason: "it asks servers from outside, and reads the directory of one that may not run; it knows nothing of what acts on a cluster"},
	{from: []string{"machine"}, to: without("machine", "internal"),
		reason: "it puts a program on a machine and takes it off; what the program is to a cluster is said by its callers"},
	{from: without("cmd"), to: []string{"machine"},
		except: []string{"machine"},
		reason: "no part of a node knows how the node came onto its machine"},
	{from: []string{"backups"}, to: without("backups", "clusterstatus", "raftstore", "internal"),
		allow:  []string{"apiserver/extra"}, // the answers of handlers, and nothing of objects
		reason: "a backup is made where nothing but the store may work; its caller gives it the cluster's secrets"},
	{from: []string{"devcluster"}, to: without("devcluster", "pki", "internal"),
		allow:  []string{"kubelet/containerd", "membership/token", "network/nodeaddr"},
		reason: "it starts the program as an operator does; it knows nothing of what runs in a server"},
	{from: without("cmd", "cluster-test", "devcluster"), to: []string{"devcluster"},
		except: []string{"clusterstatus/ask", "clusterstatus/doctor"},
		reason: "no part of a cluster knows that it is in one that is there to try"},
	{from: []string{"apiserver/extra"}, to: without("raftstore"),
		allow:  []string{"apiserver/extra", "apiserver/storeerror", "internal/caller", "internal/clusterusers"},
		reason: "backups uses it, which knows nothing of objects"},
	{from: []string{"adminapi/remote"}, to: without("adminapi", "backups", "clusterstatus", "raftstore", "internal"),
		// The kinds of errors of the API, and the types of answers.
		allow: []string{"apiserver/storeerror", "upgrade", "membership/acts",
			"membership/credentials", "membership/datakeys", "membership/exchange", "membership/keyring",
			"membership/revocation"},
		reason: "a command sees a server by its answers"},
	{from: []string{"adminapi"}, to: []string{"adminapi/remote"},
		except: []string{"adminapi/remote"},
		reason: "a server is asked by commands; servers ask each other with their own certificates"},
	{from: []string{"adminapi"}, to: without("adminapi", "clusterstatus", "raftstore", "membership", "pki", "internal"),
		allow:  []string{"apiserver/extra"}, // how handlers answer
		except: []string{"adminapi/remote"},
		reason: "it serves what the store and gossip know; an operator's request needs nothing of what acts on the cluster"},
	{from: slices.Concat(storeBase, storeParts), to: []string{"raftstore/node"},
		reason: "node wires the parts of a server together; each part declares the interface that it needs, so that it can be read and tested alone"},
	{from: storeBase, to: storeParts,
		reason: "the state and the log of one replica are the same whoever else is in the group"},
	{from: []string{"raftstore/mvcc", "raftstore/command", "raftstore/kv", "raftstore/logstore", "raftstore/snapdir",
		"raftstore/snapshot"}, to: []string{"raftstore/fsm"},
		reason: "the state machine applies commands to the state; neither knows how it comes to that"},
	{from: []string{"raftstore/group"},
		to: []string{"raftstore/fsm", "raftstore/logstore", "raftstore/snapdir", "raftstore/rpc",
			"raftstore/transport", "github.com/hashicorp/raft"},
		reason: "it is the vocabulary of all parts, and brings nothing with it"},
	{from: []string{"raftstore/peer"}, to: storePartsBut("raftstore/peer", "raftstore/group"),
		reason: "how servers reach each other does not depend on what they say"},
	{from: []string{"raftstore/disk"}, to: storePartsBut("raftstore/disk", "raftstore/group"),
		reason: "a data directory is read with no other server in sight, as a recovery does"},
	{from: []string{"raftstore/lateness"}, to: storePartsBut("raftstore/lateness", "raftstore/group"),
		reason: "how late servers are is a number; what it extends is the others' business"},
	{from: []string{"raftstore/raftfix"}, to: storePartsBut("raftstore/raftfix"),
		reason: "a workaround goes when hashicorp/raft is fixed; it knows Raft and the log, so that it can"},
	{from: []string{"raftstore/recovery"}, to: storePartsBut("raftstore/recovery", "raftstore/disk", "raftstore/group"),
		reason: "a recovery has one directory, and no other server to ask"},
	{from: []string{"raftstore/readindex"},
		to:     storePartsBut("raftstore/readindex", "raftstore/group", "raftstore/peer", "raftstore/status"),
		reason: "whether a read reflects all writes depends on terms and a quorum's word, and on nothing that else goes on in a server"},
	{from: []string{"raftstore/succession"},
		to:     storePartsBut("raftstore/succession", "raftstore/group", "raftstore/peer", "raftstore/disk"),
		reason: "a server whose cluster has a successor only stops: it needs to know how it learned of that, and where it writes it down"},
	{from: []string{"raftstore/status"},
		to: []string{"raftstore/election", "raftstore/autopilot", "raftstore/integrity", "raftstore/leader",
			"raftstore/readindex", "raftstore/recovery", "raftstore/succession"},
		reason: "status is what servers tell each other of themselves; those who act on it import it"},
	{from: []string{"raftstore/election"},
		to: []string{"raftstore/autopilot", "raftstore/integrity", "raftstore/leader", "raftstore/readindex",
			"raftstore/recovery", "raftstore/succession"},
		reason: "they meet in node, each behind the interface that the other one declares"},
	{from: []string{"raftstore/autopilot"},
		to: []string{"raftstore/election", "raftstore/integrity", "raftstore/leader", "raftstore/readindex",
			"raftstore/recovery", "raftstore/succession"},
		reason: "they meet in node, each behind the interface that the other one declares"},
	{from: []string{"raftstore/integrity"},
		to: []string{"raftstore/election", "raftstore/autopilot", "raftstore/leader", "raftstore/readindex",
			"raftstore/recovery", "raftstore/succession"},
		reason: "they meet in node, each behind the interface that the other one declares"},
	{from: []string{"raftstore/leader"},
		to:     []string{"raftstore/integrity", "raftstore/readindex", "raftstore/recovery", "raftstore/succession"},
		reason: "it hands over to whom autopilot finds fit and election does not find silent; what a leader works on it is handed"},
	{from: []string{"raftstore/register"}, to: slices.Concat(storeBase, storeParts, []string{"raftstore/node"}),
		reason: "it is a user of the store like any other"},
	{from: []string{"apiserver"},
		to:     []string{"controllers", "scheduler", "kubelet", "network", "edge", "membership", "pki"},
		reason: "the API server serves objects; who acts on them are its clients"},
	{from: []string{"apiserver/groups"}, to: []string{"apiserver", "raftstore"},
		allow:  []string{"apiserver/groups", "apiserver/resource"},
		reason: "declarations are pure: a server adds to a kind the parts that reach the cluster"},
	{from: []string{"apiserver/storage", "apiserver/fieldindex", "apiserver/objectcache", "apiserver/rawlist"},
		to:     []string{"apiserver/groups", "apiserver/resource", "apiserver/restoptions"},
		reason: "the storage of a kind is the same for all: what it is for is known by the registries above it"},
	{from: []string{"controllers", "scheduler", "kubelet", "network", "edge"}, to: []string{"apiserver", "raftstore"},
		reason: "they see the cluster only through the clients and informers that cmd hands them, as those of any cluster"},
	{from: []string{"controllers"}, to: []string{"scheduler", "kubelet", "network", "edge", "membership", "pki"},
		reason: "rooms meet in the API, not in Go"},
	{from: []string{"scheduler"}, to: []string{"controllers", "kubelet", "network", "edge", "membership", "pki"},
		reason: "rooms meet in the API, not in Go"},
	{from: []string{"kubelet"}, to: []string{"controllers", "scheduler", "network", "edge", "membership", "pki"},
		reason: "rooms meet in the API, not in Go"},
	{from: []string{"kubelet/pods/lifecycle"},
		to:     []string{"kubelet/pods", "kubelet/cri", "k8s.io/client-go", "os", "net/http"},
		reason: "it decides from the facts that it is given; package pods collects them and acts"},
	{from: []string{"network"}, to: []string{"controllers", "scheduler", "kubelet", "edge", "membership", "pki"},
		reason: "rooms meet in the API, not in Go"},
	{from: []string{"edge"}, to: []string{"controllers", "scheduler", "kubelet", "membership", "pki"},
		reason: "rooms meet in the API, not in Go; of network it uses the nftables library and the families"},
	{from: []string{"membership"}, to: without("membership", "pki", "internal"),
		reason: "who is a peer is known before there is an API or a store; it proves itself by pki's certificates and nothing else"},
	{from: []string{"membership/rollover"}, to: without("internal"),
		reason: "it is one machine for all keys that members share, so it knows none of them"},
	{from: []string{"pki"}, to: without("pki", "internal"),
		reason: "private keys are seen by as little code as can be"},
	{from: []string{"pki"}, to: []string{"pki/identity"},
		except: []string{"pki/identity"},
		reason: "an authority issues certificates; it knows nothing of their holders, or of the time of a renewal"},
	{from: []string{"upgrade"}, to: without("upgrade", "internal"),
		allow:  []string{"membership/skew"},
		reason: "it decides by what nodes answer, and starts programs before there is a cluster; cmd hands it the way to the nodes"},
	{from: []string{"upgrade/versions", "upgrade/release"}, to: []string{"k8s.io/client-go", "upgrade/part"},
		reason: "the program that starts another one knows files and processes only"},
	{from: without("cmd", "cluster-test", "adminapi", "upgrade"), to: []string{"upgrade"},
		reason: "no part of a node knows that it may be exchanged"},
	{from: []string{"verify"}, to: without("verify", "internal"),
		reason: "it judges a cluster by what any client is told; whoever knows how the cluster works excuses it, which internal does not"},
	{from: []string{"release"}, to: without("release", "internal"),
		reason: "it describes the program from outside; whatever it imported would have to be built before its own licences are known"},
	{from: rooms, to: []string{"k8s.io/kubernetes"},
		reason: "it is not made to be a library"},
	{from: rooms, to: append([]string{"testing"}, testHelpers...),
		except: testHelpers,
		reason: "test helpers do not belong into the product"},
}

// operator are the rooms that operators' commands use.
var operator = []string{"adminapi", "backups", "clusterstatus"}

// storeBase are the packages of the store that know one replica only, and storeParts those of which
// a server of a group is made:
//
//	storeBase ← {peer, disk, raftfix} ← status ← {election, autopilot, integrity, readindex} ← node
//	{election, autopilot} ← leader ← node
//	{peer, disk} ← succession ← node
//	disk ← recovery
var (
	storeBase = []string{"raftstore/mvcc", "raftstore/command", "raftstore/kv", "raftstore/logstore",
		"raftstore/snapdir", "raftstore/snapshot", "raftstore/fsm",
		"raftstore/rpc", "raftstore/transport", "raftstore/raftlog", "raftstore/faultpoint", "raftstore/gctuner"}
	storeParts = []string{"raftstore/group", "raftstore/lateness", "raftstore/peer", "raftstore/disk",
		"raftstore/raftfix", "raftstore/status", "raftstore/election", "raftstore/autopilot",
		"raftstore/integrity", "raftstore/leader", "raftstore/readindex", "raftstore/recovery", "raftstore/succession"}
)

func storePartsBut(excluded ...string) []string {
	return slices.DeleteFunc(slices.Clone(storeParts), func(p string) bool { return slices.Contains(excluded, p) })
}

// testHelpers are packages that are for the tests of others: conformance suites and fakes.
var testHelpers = []string{"apiserver/groups/grouptest", "apiserver/logins/logintest", "controllers/controllertest",
	"internal/apart", "internal/await", "internal/child", "internal/heapcost", "internal/mountspace", "internal/needs",
	"internal/syncbuf", "internal/unpack", "internal/writeout/writeouttest",
	"membership/rollovertest", "pki/companytest", "raftstore/storetest", "scheduler/plugins/plugintest", "cluster-test"}

func without(excluded ...string) []string {
	var out []string
	for _, r := range rooms {
		keep := true
		for _, e := range excluded {
			keep = keep && r != e
		}
		if keep {
			out = append(out, r)
		}
	}
	return out
}

type pkg struct {
	ImportPath string
	Imports    []string
}

func packages(t *testing.T) []pkg {
	t.Helper()
	cmd := exec.Command("go", "list", "-json=ImportPath,Imports", module+"...")
	cmd.Dir = "../.."
	out, err := cmd.Output()
	if err != nil {
		var exit *exec.ExitError
		if errors.As(err, &exit) {
			t.Fatalf("go list: %v: %s", err, exit.Stderr)
		}
		t.Fatal(err)
	}
	var all []pkg
	for d := json.NewDecoder(strings.NewReader(string(out))); ; {
		var p pkg
		if err := d.Decode(&p); errors.Is(err, io.EOF) {
			return all
		} else if err != nil {
			t.Fatal(err)
		}
		all = append(all, p)
	}
}

// under reports whether the path is one of the prefixes or below it.
func under(path string, prefixes []string) bool {
	for _, prefix := range prefixes {
		if path == prefix || strings.HasPrefix(path, prefix+"/") {
			return true
		}
	}
	return false
}

// broken returns the imports of the package that break the ban.
func (b ban) broken(p pkg) []string {
	path := strings.TrimPrefix(p.ImportPath, module)
	if !under(path, b.from) || under(path, b.except) {
		return nil
	}
	var out []string
	for _, i := range p.Imports {
		if imported := strings.TrimPrefix(i, module); under(imported, b.to) && !under(imported, b.allow) {
			out = append(out, imported)
		}
	}
	return out
}

func TestDirections(t *testing.T) {
	all := packages(t)
	if len(all) < 50 {
		t.Fatalf("go list found only %d packages", len(all))
	}
	for _, p := range all {
		for _, b := range bans {
			for _, imported := range b.broken(p) {
				t.Errorf("%s imports %s, but must not: %s", p.ImportPath, imported, b.reason)
			}
		}
	}
}

// Every package is in a room that the bans know.
func TestRoomsAreKnown(t *testing.T) {
	for _, p := range packages(t) {
		if path := strings.TrimPrefix(p.ImportPath, module); !under(path, rooms) {
			t.Errorf("%s is in no room of docs/design.md; add it there and to rooms", p.ImportPath)
		}
	}
}

func TestBansFindWhatTheyForbid(t *testing.T) {
	for _, c := range []struct {
		from, to string
		broken   bool
	}{
		{"controllers/deployment", "raftstore", true},
		{"controllers/deployment", "internal/queue", false},
		{"kubelet", "apiserver/groups/core", true},
		{"raftstore/mvcc", "k8s.io/api/core/v1", true},
		{"apiserver", "raftstore/node", false},
		{"raftstore", "raftstore/node", false},
		{"raftstore/disk", "raftstore/node", true},
		{"raftstore/disk", "raftstore/logstore", false},
		{"raftstore/disk", "raftstore/peer", true},
		{"raftstore/logstore", "raftstore/disk", true},
		{"raftstore/recovery", "raftstore/disk", false},
		{"raftstore/recovery", "raftstore/peer", true},
		{"raftstore/integrity", "raftstore/status", false},
		{"raftstore/status", "raftstore/integrity", true},
		{"raftstore/leader", "raftstore/autopilot", false},
		{"raftstore/autopilot", "raftstore/leader", true},
		{"membership/join", "pki", false},
		{"membership/join", "apiserver", true},
		{"membership/rollover", "membership/exchange", true},
		{"membership/rollover", "internal/trouble", false},
		{"cmd/barque", "kubelet", false},
		{"cmd/barque", "net/http", true},
		{"cmd/barque", "raftstore", true},
		{"cmd/barque", "raftstore/backup", false},
		{"cmd/barque", "k8s.io/apimachinery/pkg/api/errors", true},
		{"cmd/barque/node", "net/http", false},
		{"adminapi/remote", "membership/exchange", false},
		{"adminapi/remote", "membership/gossip", true},
		{"network/path", "membership/token", true},
		{"scheduler", "schedulers", false},
		{"adminapi", "clusterstatus", false},
		{"adminapi", "apiserver/extra", false},
		{"adminapi", "apiserver/storage", true},
		{"clusterstatus/doctor", "network/faults", false},
		{"clusterstatus/doctor", "network/proxy", true},
		{"devcluster", "kubelet/pods", true},
		{"kubelet/pods/lifecycle", "kubelet/pods/runtimestate", true},
		{"kubelet/pods/lifecycle", "kubelet/cgroups", false},
		{"adminapi", "controllers/noderole", true},
		{"backups", "adminapi", true},
		{"backups", "apiserver/extra", false},
		{"backups", "apiserver/storage", true},
		{"adminapi/remote", "apiserver/storeerror", false},
		{"adminapi/remote", "apiserver/storage", true},
		{"apiserver/groups/core", "apiserver/groups/core/pod", false},
		{"apiserver/groups/core/service", "apiserver/services", true},
		{"apiserver/storage", "apiserver/fieldindex", false},
		{"apiserver/storage", "apiserver/restoptions", true},
		{"pki", "pki/identity", true},
		{"pki/identity", "pki", false},
		{"backups", "membership/join", true},
		{"clusterstatus", "adminapi", true},
		{"clusterstatus", "raftstore", false},
		{"clusterstatus", "clusterstatus/ask", true},
		{"clusterstatus/doctor", "clusterstatus/ask", false},
		{"clusterstatus/ask", "kubelet", true},
		{"raftstore/autopilot", "devcluster", true},
		{"clusterstatus", "apiserver/groups/core", true},
		{"clusterstatus", "k8s.io/client-go/rest", true},
		{"controllers/deployment", "clusterstatus", true},
	} {
		imported := c.to
		if !strings.Contains(strings.Split(imported, "/")[0], ".") {
			imported = module + imported
		}
		broken := false
		for _, b := range bans {
			broken = broken || len(b.broken(pkg{ImportPath: module + c.from, Imports: []string{imported}})) > 0
		}
		if broken != c.broken {
			t.Errorf("%s imports %s: broken %v, want %v", c.from, c.to, broken, c.broken)
		}
	}
}

package devcluster

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/barque/barque/internal/needs"
	"github.com/barque/barque/internal/netname"
	kubeletconfig "github.com/barque/barque/kubelet/config"
	"github.com/barque/barque/kubelet/eviction"
	"github.com/barque/barque/membership/token"
)

func TestPlan(t *testing.T) {
	dir := t.TempDir()
	p, err := newPlan(Options{Name: "barque", Dir: dir, Servers: 3, Agents: 2, Args: []string{"--zone=a"}})
	if err != nil {
		t.Fatal(err)
	}
	seen := map[string]bool{p.bridge(): true}
	for i := range p.Nodes {
		n := &p.Nodes[i]
		if seen[p.veth(n)] || seen[n.Addr.String()] || len(p.veth(n)) > 15 || !p.Subnet.Contains(n.Addr) {
			t.Errorf("node %s: interface %s, address %s", n.Name, p.veth(n), n.Addr)
		}
		seen[p.veth(n)], seen[n.Addr.String()] = true, true
	}
	if err := p.save(); err != nil {
		t.Fatal(err)
	}
	loaded, err := Load(dir)
	if err != nil || len(loaded.Nodes) != 5 || loaded.Subnet != p.Subnet || loaded.Nodes[4].Role != Agent {
		t.Fatalf("loaded %+v, %v", loaded, err)
	}
	if _, err := loaded.Node("s9"); err == nil || !strings.Contains(err.Error(), "s1, s2, s3, a1, a2") {
		t.Fatalf("an unknown node: %v", err)
	}
}

func TestPlanRefusesNonsense(t *testing.T) {
	for _, c := range []struct {
		name            string
		servers, agents int
	}{{"", 3, 0}, {"Big", 3, 0}, {"a-very-long-name", 3, 0}, {"x", 0, 0}, {"x", 10, 0}, {"x", 1, -1}, {"x/y", 1, 0}} {
		dir, wrong := filepath.Join(t.TempDir(), "x"), (*WrongError)(nil)
		if _, err := Up(t.Context(),
			Options{Name: c.name, Dir: dir, Servers: c.servers, Agents: c.agents}); !errors.As(err, &wrong) {
			t.Errorf("a cluster %q with %d servers and %d agents: %v", c.name, c.servers, c.agents, err)
		}
		if _, err := os.Stat(dir); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("something was made for it: %v", err)
		}
	}
}

func TestInterfaceNamesStayShortAndDistinct(t *testing.T) {
	a, b := short("bq", "a-long-name", "s1"), short("bq", "a-long-name", "s2")
	if len(a) > 15 || len(b) > 15 || a == b {
		t.Fatalf("%q and %q", a, b)
	}
}

// A new cluster's network contains no address of this machine, nor of a wider network of it. The
// test relies only on the loopback address, because other clusters come and go meanwhile.
func TestFreeSubnetAvoidsThisMachinesAddresses(t *testing.T) {
	all, err := addresses()
	if err != nil {
		t.Fatal(err)
	}
	if !slices.ContainsFunc(all, func(p netip.Prefix) bool { return p.Contains(netip.MustParseAddr("127.0.0.1")) }) {
		t.Errorf("this machine's addresses are %v", all)
	}
	for used, want := range map[string]string{
		"fd00:10:77::1/64":                "10.78.0.0/24",
		"":                                "10.77.0.0/24",
		"127.0.0.1/8 192.168.1.7/24":      "10.77.0.0/24",
		"10.77.0.1/24":                    "10.78.0.0/24",
		"10.77.0.1/24 10.78.0.9/32":       "10.79.0.0/24",
		"10.76.1.1/14 fd00::1/64":         "10.80.0.0/24",
		"10.77.9.1/24":                    "10.77.0.0/24",
		"10.64.0.1/11 10.96.0.1/30 ::1/8": "10.97.0.0/24",
		"10.0.0.1/8":                      "",
	} {
		var prefixes []netip.Prefix
		for _, p := range strings.Fields(used) {
			prefixes = append(prefixes, netip.MustParsePrefix(p))
		}
		subnet, subnet6, err := freeSubnets(prefixes)
		if (err == nil) != (want != "") || err == nil && subnet.String() != want {
			t.Errorf("beside %q: %v, %v, want %s", used, subnet, err, want)
		}
		if err != nil {
			continue
		}
		if want6 := fmt.Sprintf("fd00:10:%d::/64", subnet.Addr().As4()[1]); subnet6.String() != want6 {
			t.Errorf("beside %v is %v, want %s", subnet, subnet6, want6)
		}
	}
}

func TestPortTaken(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	taken := netip.MustParseAddrPort(l.Addr().String()).Port()
	if _, err := freePort(taken); err == nil || !strings.Contains(err.Error(), "is taken") {
		t.Fatalf("got %v", err)
	}
}

func TestLockIsExclusive(t *testing.T) {
	dir := t.TempDir()
	unlock, err := lock(dir)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := lock(dir); err == nil {
		t.Fatal("two commands worked on one cluster")
	}
	unlock()
	unlock, err = lock(dir)
	if err != nil {
		t.Fatal(err)
	}
	unlock()
}

// A quorum counts the voters, which need not be the servers of the plan.
func TestQuorum(t *testing.T) {
	p, err := newPlan(Options{Name: "barque", Dir: t.TempDir(), Servers: 3})
	if err != nil {
		t.Fatal(err)
	}
	started, running := startTime(os.Getpid())
	if !running {
		t.Fatal("this process does not run")
	}
	for i := range 2 { // s1 and s2 run, s3 does not
		p.Nodes[i].Process = &Process{PID: os.Getpid(), Started: started}
	}
	if err := p.save(); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		voters  string // a cross marks voters of another cluster
		because error
	}{
		{"s1 s2 s3", nil},
		{"s1 s3", errTooFew},
		{"s1", nil}, // as after a recovery
		{"s3", errTooFew},
		{"s3 x y", nil}, // of others nothing is known
		{"", nil},       // nor before it has joined
		{"+s1 s2 s3", ErrLeftBehind},
		{"+s1 +s2 s3", ErrLeftBehind},
		{"s1 s2 +s3", nil},
	} {
		var voters []Voter
		for _, name := range strings.Fields(c.voters) {
			v := Voter{Name: strings.Trim(name, "+")}
			if name[0] == '+' {
				v.Foreign = "new"
			}
			voters = append(voters, v)
		}
		if got := p.quorum(voters); !errors.Is(got, c.because) || hopeless(got) != (c.because != nil) {
			t.Errorf("voters %q: %v", c.voters, got)
		}
	}
}

// The kernel reuses pids; a Process must never refer to another process.
func TestProcessIsMoreThanAPID(t *testing.T) {
	cmd := exec.Command("sleep", "60")
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	reaped := make(chan error, 1)
	go func() { reaped <- cmd.Wait() }()
	started, running := startTime(cmd.Process.Pid)
	if !running {
		t.Fatal("it does not run")
	}
	other := &Process{PID: cmd.Process.Pid, Started: started + 1}
	if other.Alive() {
		t.Fatal("a process with the pid of another one counts as alive")
	}
	if err := other.kill(); err != nil {
		t.Fatal(err)
	}
	p := &Process{PID: cmd.Process.Pid, Started: started}
	if !p.Alive() {
		t.Fatal("killing something else ended it")
	}
	if err := p.stop(10 * time.Second); err != nil {
		t.Fatal(err)
	}
	<-reaped
	if p.Alive() {
		t.Fatal("it lives on")
	}
	if err := p.waitGone(context.Background()); err != nil {
		t.Fatal(err)
	}
}

func TestCommandsNeedACluster(t *testing.T) {
	if _, err := Inspect(t.TempDir()); err == nil || !strings.Contains(err.Error(), " dev up --dir") {
		t.Fatalf("got %v", err)
	}
	if err := Heal(t.TempDir()); err == nil {
		t.Fatal("healed a cluster that is not there")
	}
	dir := t.TempDir()
	if err := os.WriteFile(planPath(dir), []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := Load(dir); err == nil || errors.Is(err, os.ErrNotExist) ||
		!strings.Contains(err.Error(), "down --name") {
		t.Fatalf("a damaged plan: %v", err)
	}
}

// A node that was killed before it joined starts with the join arguments again. Without them it
// would begin a cluster of its own.
func TestEveryStartTellsANodeWhomToJoin(t *testing.T) {
	p, err := newPlan(Options{Name: "barque", Dir: t.TempDir(), Servers: 2, Agents: 1, Args: []string{"--zone=a"}})
	if err != nil {
		t.Fatal(err)
	}
	first := strings.Join(p.nodeArgs(&p.Nodes[0]), " ")
	if strings.Contains(first, "--join") || !strings.Contains(first, " --zone=a") {
		t.Errorf("s1: %s", first)
	}
	for i, flag := range map[int]string{1: "--join", 2: "--server"} {
		args := strings.Join(p.nodeArgs(&p.Nodes[i]), " ")
		if !strings.Contains(args,
			"--token-file "+p.tokenFile(&p.Nodes[i])+" "+flag+" https://"+p.apiAddr(&p.Nodes[0])) {
			t.Errorf("%s: %s", p.Nodes[i].Name, args)
		}
	}
	if agent := p.nodeArgs(&p.Nodes[2]); slices.Contains(agent, "--snapshot-unsealed") ||
		!slices.Contains(p.nodeArgs(&p.Nodes[1]), "--snapshot-unsealed") {
		t.Errorf("scheduled backups: %v", agent)
	}
	p.ServerArgs = []string{"--snapshot-key-file=/key"}
	if args := p.nodeArgs(&p.Nodes[0]); slices.Contains(args, "--snapshot-unsealed") {
		t.Errorf("scheduled backups that are sealed: %v", args)
	}
	p.ServerArgs = []string{"--no-node"}
	if agent := p.nodeArgs(&p.Nodes[2]); slices.Contains(agent, "--no-node") ||
		!slices.Contains(p.nodeArgs(&p.Nodes[1]), "--no-node") {
		t.Errorf("what is for servers: %v", agent)
	}
}

func TestClustersWithSimilarNamesAreToldApart(t *testing.T) {
	for namespace, want := range map[string]string{"barque-a-s1": "s1", "barque-a-a12": "a12", "barque-a-b-s1": "",
		"barque-b-s1": "", "barque-a-": "", "other": ""} {
		if node, ok := nodeOf("a", namespace); ok != (want != "") || ok && node != want {
			t.Errorf("%s: node %q, %v", namespace, node, ok)
		}
	}
}

// A checkout without a cluster must not remove another checkout's. TestUpRefusesALongDirectory must
// refuse before it makes anything.
func TestUpRefusesALongDirectory(t *testing.T) {
	needs.Root(t, "that a directory which is too long is refused")
	dir := filepath.Join(t.TempDir(), strings.Repeat("long", 30))
	_, err := Up(t.Context(), Options{Name: "longdir", Dir: dir, Servers: 1, Progress: func(string, ...any) {}})
	if err == nil || !strings.Contains(err.Error(), "too long for containerd's socket; use a shorter one, with --dir") {
		t.Fatalf("got %v", err)
	}
	if _, err := os.Stat(planPath(dir)); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("a plan was written: %v", err)
	}
}

// A cluster of dead servers does not count as running.
func TestUpTellsOfADeadCluster(t *testing.T) {
	needs.Root(t, "that a dead cluster is told of")
	p, err := newPlan(Options{Name: "barque", Dir: t.TempDir(), Servers: 3})
	if err != nil {
		t.Fatal(err)
	}
	p.Complete = true
	if err := p.save(); err != nil {
		t.Fatal(err)
	}
	_, err = Up(t.Context(), Options{Name: p.Name, Dir: p.Dir, Servers: 3, Progress: func(string, ...any) {}})
	if err == nil || errors.Is(err, ErrRunning) || !strings.Contains(err.Error(), "none of its servers runs") {
		t.Fatal(err)
	}
}

// A start that goes on, and a cluster that runs, keep the arguments of their nodes: others are not
// left out without a word.
func TestUpTellsOfOtherArguments(t *testing.T) {
	needs.Root(t, "that other arguments are told of")
	p, err := newPlan(Options{Name: "barque", Dir: t.TempDir(), Servers: 3, Args: []string{"--zone=a"}})
	if err != nil {
		t.Fatal(err)
	}
	if err := p.save(); err != nil {
		t.Fatal(err)
	}
	_, err = Up(t.Context(),
		Options{Name: p.Name, Dir: p.Dir, Servers: 3, Args: []string{"--zone=b"}, Progress: func(string, ...any) {}})
	if err == nil || !strings.Contains(err.Error(), "(--zone=a)") || !strings.Contains(err.Error(), "dev down") {
		t.Fatal(err)
	}
	for what, c := range map[string]struct {
		o     Options
		other bool
	}{
		"none":                 {Options{}, false},
		"the same":             {Options{Args: []string{"--zone=a"}}, false},
		"one more":             {Options{Args: []string{"--zone=a", "--x"}}, true},
		"one for servers only": {Options{ServerArgs: []string{"--x"}}, true},
	} {
		if p.otherArgs(c.o) != c.other {
			t.Errorf("%s: want %v", what, c.other)
		}
	}
}

func TestDownLeavesAnotherDirectorysClusterAlone(t *testing.T) {
	needs.Root(t, "that another checkout's cluster is left alone")
	p := &Plan{Name: ownName("dt")}
	n := &Node{Name: "s1"}
	if err := netname.Make(p.netns(n)); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := p.removeNamespace(n); err != nil {
			t.Error(err)
		}
	})
	dir := filepath.Join(t.TempDir(), strings.Repeat("long", 30)) // too long for a containerd; its removal works
	quiet := func(string, ...any) {}
	if err := Down(t.Context(), p.Name, dir, false, quiet); err == nil || !strings.Contains(err.Error(), "--dir") {
		t.Fatalf("got %v", err)
	}
	if _, err := os.Stat("/run/netns/" + p.netns(n)); err != nil {
		t.Fatalf("the other cluster's namespace: %v", err)
	}
	if err := Down(t.Context(), p.Name, dir, true, quiet); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat("/run/netns/" + p.netns(n)); !errors.Is(err, os.ErrNotExist) {
		t.Fatalf("named on purpose, the namespace is still there: %v", err)
	}
}

// The binary may have any name: processes are identified by their arguments.
func TestProcessesAreKnownByTheirArguments(t *testing.T) {
	for _, c := range []struct {
		args             string
		node, containerd bool
	}{
		{"/opt/my-barque server --data-dir /d/s1 --name s1", true, false},
		{"barque agent --name a1 --data-dir /d/s1", true, false},
		{"barque server --data-dir=/d/s1/", true, false},
		{"barque server --data-dir ../d/s1", true, false},
		{"barque server --data-dir d/s1", false, false},
		{"barque server --data-dir /d/s11", false, false},
		{"my-barque containerd --config /d/s1/containerd/config.toml", false, true},
		{"my-barque containerd --config /d/s11/containerd/config.toml", false, false},
		{"containerd-shim-runc-v2 -namespace k8s.io -address /d/s1/containerd/containerd.sock", false, false},
		{"barque snapshot ls --data-dir /d/s1", false, false},
		{"barque server --data-dir", false, false},
		{"sh", false, false},
	} {
		args := strings.Fields(c.args)
		if node, containerd := isNode(args, "/w", "/d/s1"), isContainerd(args, "/d/s1"); node != c.node ||
			containerd != c.containerd {
			t.Errorf("%s: node %v, containerd %v", c.args, node, containerd)
		}
	}
}

// The last words of a process do not include those of the process before.
func TestLastWordsAreItsOwn(t *testing.T) {
	file := filepath.Join(t.TempDir(), "log")
	for _, word := range []string{"first", "second"} {
		p, err := start("", file, []string{"echo", word})
		if err != nil {
			t.Fatal(err)
		}
		if err := p.waitGone(t.Context()); err != nil {
			t.Fatal(err)
		}
		if got := p.words(file, 5); got != "    "+word {
			t.Errorf("the words of the %s: %q", word, got)
		}
	}
	p, err := start("", file, []string{"true"})
	if err != nil {
		t.Fatal(err)
	}
	if err := p.waitGone(t.Context()); err != nil {
		t.Fatal(err)
	}
	if got := p.words(file, 5); got != "    (none)" {
		t.Errorf("one that said nothing: %q", got)
	}
}

// A server that rejoins gets arguments to drop its store and to join a server that serves. This
// also holds for the first server: its ordinary arguments would begin a new cluster.
func TestAServerJoinsAgainByOneThatServes(t *testing.T) {
	dir := t.TempDir()
	p, err := newPlan(Options{Name: "barque", Dir: dir, Servers: 3, Agents: 1})
	if err != nil {
		t.Fatal(err)
	}
	if err := p.save(); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct{ name, by int }{{0, 1}, {1, 0}, {1, 2}, {2, 1}} {
		n, by := &p.Nodes[c.name], &p.Nodes[c.by]
		args := p.rejoinArgs(n, by)
		if !slices.Contains(args, "--wipe") ||
			!hasFlag(args, "--join", func(v string) bool { return v == "https://"+p.apiAddr(by) }) ||
			!hasFlag(args, "--token-file", func(v string) bool { return v == p.tokenFile(n) }) ||
			!isNode(commandLine(args), "/", p.DataDir(n)) {
			t.Errorf("%s by %s: %q", n.Name, by.Name, args)
		}
		if plain := p.nodeArgs(n); slices.Contains(plain, "--wipe") {
			t.Errorf("%s always drops its store: %q", n.Name, plain)
		}
	}
	for name, want := range map[string]string{"s2": "no other server is ready: s1 does not run", "a1": "is no server",
		"s9": "s9"} {
		if err := Rejoin(t.Context(), dir, name); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v; want %q", name, err, want)
		}
		if _, err := os.Stat(filepath.Join(dir, name+".token")); err == nil {
			t.Errorf("%s has a token", name)
		}
	}
}

// A token for a rejoin is valid for an hour. It is deleted when the server has not joined, also
// after Ctrl-C. It stays while the server runs, because it may be about to join.
func TestTokenOfAFailedRejoinIsDeleted(t *testing.T) {
	failed := errors.New("it is a member of the store yet")
	for name, c := range map[string]struct {
		runs bool
		err  error
		left int
	}{
		"joined":                      {true, nil, 1},
		"ended":                       {false, failed, 0},
		"takes too long, but may yet": {true, failed, 1},
	} {
		client, left := tokenServer(t, http.StatusOK)
		ctx, interrupt := context.WithCancel(t.Context())
		err := withToken(ctx, client, func(joinToken string) (bool, error) {
			if *left != 1 || joinToken != "the token" {
				t.Errorf("%s: %d tokens, %q", name, *left, joinToken)
			}
			interrupt()
			return c.runs, c.err
		})
		if !errors.Is(err, c.err) {
			t.Errorf("%s: %v", name, err)
		}
		if *left != c.left {
			t.Errorf("%s: left are %d tokens; want %d", name, *left, c.left)
		}
	}
}

// tokenServer makes and deletes tokens, and answers deletions with the given status.
func tokenServer(t *testing.T, deletes int) (client rest.Interface, left *int) {
	t.Helper()
	left = new(int)
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		if r.Method == http.MethodPost {
			var order token.Order
			if err := json.NewDecoder(r.Body).Decode(&order); err != nil || order.Role != token.Server ||
				order.Uses != 1 {
				t.Errorf("asked for %+v, %v", order, err)
			}
			*left++
			fmt.Fprint(w, `{"id":"abcdef","token":"the token"}`)
			return
		}
		w.WriteHeader(deletes)
		if deletes == http.StatusOK && r.URL.Query().Get("id") == "abcdef" {
			*left--
		}
		fmt.Fprint(w, `{"was":true}`)
	}))
	t.Cleanup(server.Close)
	set, err := kubernetes.NewForConfig(&rest.Config{Host: server.URL})
	if err != nil {
		t.Fatal(err)
	}
	return set.Discovery().RESTClient(), left
}

// The error about an undeleted token names the token and the command that deletes it.
func TestTokenThatStaysIsNamed(t *testing.T) {
	client, left := tokenServer(t, http.StatusGatewayTimeout)
	failed := errors.New("it has ended")
	err := withToken(t.Context(), client, func(string) (bool, error) { return false, failed })
	if !errors.Is(err, failed) || !strings.Contains(err.Error(), "barque token delete abcdef`") || *left != 1 {
		t.Errorf("%v; %d tokens", err, *left)
	}
}

// commandLine is the command line of a process with these arguments.
func commandLine(args []string) []string { return append([]string{"barque"}, args...) }

// A dev cluster runs on a disk that is fuller than a node's may be.
func TestADevClusterDoesNotMindAFullDisk(t *testing.T) {
	p, err := newPlan(Options{Name: "barque", Dir: t.TempDir(), Servers: 1, Args: []string{"--kubelet-config=/mine"}})
	if err != nil {
		t.Fatal(err)
	}
	args := p.nodeArgs(&p.Nodes[0])
	ours := slices.Index(args, "--kubelet-config")
	if ours < 0 || args[ours+1] != p.kubeletFile() || slices.Index(args, "--kubelet-config=/mine") < ours {
		t.Errorf("the user's own file comes after ours: %v", args)
	}
	if err := p.writeKubeletConfig(); err != nil {
		t.Fatal(err)
	}
	c, ignored, err := kubeletconfig.Load(p.kubeletFile(), "", nil, nil)
	if err != nil || len(ignored) > 0 {
		t.Fatalf("ignored %v, %v", ignored, err)
	}
	thresholds, err := kubeletconfig.Thresholds(c)
	if err != nil || len(thresholds) != 1 || thresholds[0].Signal != eviction.MemoryAvailable ||
		*c.ImageGCHighThresholdPercent != 100 {
		t.Errorf("images are removed at %d %%, pods at %v; %v", *c.ImageGCHighThresholdPercent, thresholds, err)
	}
	if err := p.removeFiles(); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(p.kubeletFile()); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("it stays: %v", err)
	}
}

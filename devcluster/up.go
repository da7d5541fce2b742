package devcluster

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/barque/barque/internal/filelock"
	"github.com/barque/barque/kubelet/containerd"
	"github.com/barque/barque/membership/token"
)

// Options of Up.
type Options struct {
	Name    string
	Dir     string // absolute
	Servers int
	Agents  int
	// Families of the cluster's addresses, the primary one first; IPv4 when empty.
	Families []Family

	APIPort uint16   // of the proxy; 0 looks for a free one, from 6443 up
	Args    []string // of every node

	ServerArgs []string // of servers, beside these
	// Timeout bounds each wait for a node; 2 min when 0.
	Timeout time.Duration
	// Progress receives a line about each finished step.
	Progress func(format string, args ...any)
}

// ErrRunning is returned, with the plan, when the cluster runs already, and ErrOtherArgs beside it
// when other arguments were given for its nodes than those that they have.
var (
	ErrRunning   = errors.New("the dev cluster runs already")
	ErrOtherArgs = errors.New("the nodes of the dev cluster have other arguments")
)

// Up makes the cluster, or completes an interrupted Up.
func Up(ctx context.Context, o Options) (*Plan, error) {
	if err := errors.Join(checkSize(o.Name, o.Servers, o.Agents), checkFamilies(o.Families)); err != nil {
		return nil, err
	}
	if os.Geteuid() != 0 {
		return nil, errors.New("a dev cluster needs root, for network namespaces and containers: run it with sudo")
	}
	if o.Timeout == 0 {
		o.Timeout = 2 * time.Minute
	}
	unlock, err := lock(o.Dir)
	if err != nil {
		return nil, err
	}
	defer unlock()
	p, err := Load(o.Dir)
	if err == nil {
		err = p.adopt()
	}
	switch {
	case errors.Is(err, os.ErrNotExist):
	case err != nil:
		return nil, err
	case p.Complete && !slices.ContainsFunc(p.servers(), func(n *Node) bool { return n.Process.Alive() }):
		return p,
			fmt.Errorf(
				"the dev cluster %q is there, and none of its servers runs: `%s` starts each again; after the machine was restarted, `%s` and `%s` make a new one", p.Name, p.command("start", "NODE"), p.command("down"), p.command("up"))
	case p.Complete:
		err := errors.Join(p.RenewKubeconfig(), ErrRunning)
		if p.otherArgs(o) {
			err = errors.Join(err, ErrOtherArgs)
		}
		return p, err
	case p.otherArgs(o):
		return p,
			fmt.Errorf(
				"a start of the dev cluster %q did not finish, and its nodes have other arguments (%s): give the same ones or none to go on, or remove it first with `%s`",
				p.Name, cmp.Or(strings.Join(append(slices.Clone(p.Args), p.ServerArgs...), " "), "none"),
				p.command("down"))
	default:
		o.Progress("going on with a start that did not finish")
	}
	if p, err = takeNetwork(ctx, p, o); err != nil {
		return p, err
	}
	for i := range p.Nodes {
		if err := p.makeNamespace(&p.Nodes[i]); err != nil {
			return p, err
		}
	}
	o.Progress("network %s on bridge %s, %d namespaces", joined(p.subnets()), p.bridge(), len(p.Nodes))
	if err := p.startAll(ctx, o); err != nil {
		return p, err
	}
	p.Complete = true
	return p, p.save()
}

// otherArgs reports whether arguments are given for the nodes that are not those of the plan. The
// nodes that run have the plan's.
func (p *Plan) otherArgs(o Options) bool {
	return o.Args != nil && !slices.Equal(o.Args, p.Args) ||
		o.ServerArgs != nil && !slices.Equal(o.ServerArgs, p.ServerArgs)
}

// takeNetwork allocates the cluster's networks on this machine, for a new plan if there is none.
func takeNetwork(ctx context.Context, p *Plan, o Options) (*Plan, error) {
	unlock, err := lockHost(ctx)
	if err != nil {
		return p, err
	}
	defer unlock()
	if p == nil {
		if p, err = begin(o); err != nil {
			return nil, err
		}
	}
	return p, p.makeNetwork()
}

func begin(o Options) (*Plan, error) {
	p, err := newPlan(o)
	if err != nil {
		return nil, err
	}
	for i := range p.Nodes {
		if err := containerd.CheckDataDir(p.DataDir(&p.Nodes[i])); err != nil {
			return nil, fmt.Errorf("%w, with --dir", err)
		}
		if _, err := os.Stat("/run/netns/" + p.netns(&p.Nodes[i])); err == nil {
			return nil,
				fmt.Errorf(
					"a dev cluster named %q is there already, from another directory; remove it with `%s`, or choose another --name", o.Name, CommandLine(o.Dir, "down", "--name", o.Name))
		}
	}
	if p.APIPort, err = freePort(o.APIPort); err != nil {
		return nil, err
	}
	if p.Forwarding, err = forward4.before(); err != nil {
		return nil, err
	}
	if p.hasIPv6() {
		if p.Forwarding6, err = forward6.before(); err != nil {
			return nil, err
		}
	}
	return p, p.save()
}

// freePort returns the wanted port of the loopback if it is free. With 0 it returns the first free
// port from 6443 up.
func freePort(want uint16) (uint16, error) {
	first, last := want, want
	if want == 0 {
		first, last = apiPort, apiPort+100
	}
	for port := first; port <= last; port++ {
		l, err := net.Listen("tcp", fmt.Sprintf("127.0.0.1:%d", port))
		if err == nil {
			return port, l.Close()
		}
		if !errors.Is(err, syscall.EADDRINUSE) {
			return 0, err
		}
	}
	return 0, fmt.Errorf("port %d on 127.0.0.1 is taken; choose another with --api-port", first)
}

// lock keeps two commands from working on one cluster at a time.
func lock(dir string) (unlock func(), err error) { return lockWithin(dir, 0) }

// lockWithin waits up to that long for another command to end.
func lockWithin(dir string, patience time.Duration) (unlock func(), err error) {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	f, err := filelock.Acquire(ctx, filepath.Join(dir, "lock"))
	if errors.Is(err, filelock.ErrHeld) {
		return nil, fmt.Errorf("another barque dev command works on %s right now; wait for it", dir)
	}
	if err != nil {
		return nil, err
	}
	return func() { f.Close() }, nil
}

// startAll starts the first server, and the others when it serves, because they join it.
func (p *Plan) startAll(ctx context.Context, o Options) error {
	servers := p.servers()
	first := servers[0]
	if err := p.startNode(first, ""); err != nil {
		return err
	}
	config, err := p.waitServing(ctx, first, o.Timeout, nil)
	if err != nil {
		return err
	}
	o.Progress("%s serves the API at %s", first.Name, p.apiAddr(first))
	if err := p.serveEndpoint(ctx, first, o); err != nil {
		return err
	}
	if len(p.Nodes) > 1 {
		if err := p.startJoining(ctx, config, o); err != nil {
			return err
		}
	}
	return p.waitNodes(ctx, o)
}

func (p *Plan) startJoining(ctx context.Context, config *rest.Config, o Options) error {
	group, ctx := errgroup.WithContext(ctx)
	tokens := map[string]string{}
	for i := range p.Nodes {
		n := &p.Nodes[i]
		if n == p.servers()[0] || n.Process.Alive() {
			continue
		}
		if tokens[n.Role] == "" {
			t, err := newToken(ctx, config, n.Role, "barque dev up")
			if err != nil {
				return err
			}
			tokens[n.Role] = t
		}
		if err := p.startNode(n, tokens[n.Role]); err != nil {
			return err
		}
		if n.Role == Server {
			group.Go(func() error {
				_, err := p.waitServing(ctx, n, o.Timeout, nil)
				if err == nil {
					o.Progress("%s has joined and serves the API at %s", n.Name, p.apiAddr(n))
				}
				return err
			})
		}
	}
	return group.Wait()
}

// newToken makes a token at a server, for any number of nodes.
func newToken(ctx context.Context, config *rest.Config, role, description string) (string, error) {
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		return "", err
	}
	made, err := token.Create(ctx, client.Discovery().RESTClient(),
		token.Spec{Role: role, TTL: time.Hour, Description: description})
	return made.Token, err
}

// startNode starts a node's process unless it runs. A token that is given replaces an older one.
func (p *Plan) startNode(n *Node, joinToken string) error {
	return p.startWith(n, joinToken, p.nodeArgs(n))
}

// startWith is startNode with the arguments given.
func (p *Plan) startWith(n *Node, joinToken string, args []string) error {
	if n.Process.Alive() {
		return nil
	}
	self, err := os.Executable()
	if err != nil {
		return err
	}
	if joinToken != "" {
		if err := os.WriteFile(p.tokenFile(n), []byte(joinToken+"\n"), 0o600); err != nil {
			return err
		}
	}
	if err := p.writeKubeletConfig(); err != nil {
		return err
	}
	n.Process, err = start(p.netns(n), p.LogFile(n), append([]string{self}, args...))
	return errors.Join(err, p.save())
}

func (p *Plan) tokenFile(n *Node) string { return filepath.Join(p.Dir, n.Name+".token") }

// nodeArgs returns the arguments of a node's process. All nodes but the first get join arguments at
// every start. A node that has joined ignores them; one that was killed before must not begin a
// cluster.
func (p *Plan) nodeArgs(n *Node) []string {
	return p.joinArgs(n, p.servers()[0])
}

// joinArgs is nodeArgs with another server to join. That server itself gets no join arguments.
func (p *Plan) joinArgs(n, by *Node) []string {
	args := []string{n.Role, "--data-dir", p.DataDir(n), "--name", n.Name, "--node-ip", p.nodeIPs(n), "--cgroup-root",
		p.cgroup(n),
		"--pod-logs-dir", filepath.Join(p.DataDir(n), "log/pods"), "--kubelet-root-dir",
		filepath.Join(p.DataDir(n), "kubelet"),
		"--kubelet-config", p.kubeletFile()}
	if n.Name != by.Name {
		flag := map[string]string{Server: "--join", Agent: "--server"}[n.Role]
		args = append(args, "--token-file", p.tokenFile(n), flag, "https://"+p.apiAddr(by))
	}
	if n.Role == Server {
		args = append(args, p.rangeArgs()...) // before the user's arguments, which take precedence
	}
	args = append(args, p.Args...)
	if n.Role == Server {
		args = append(args, p.ServerArgs...)
		if !slices.ContainsFunc(args, func(a string) bool { return strings.HasPrefix(a, "--snapshot-key-file") }) {
			args = append(args, "--snapshot-unsealed") // a dev cluster has no secrets worth a key
		}
	}
	return args
}

// serveEndpoint starts the proxy, the one endpoint in the kubeconfig, and waits until it leads to
// the first server. A port that was free in the plan may be taken by now. Then another one is
// chosen, unless the user wanted that port.
func (p *Plan) serveEndpoint(ctx context.Context, first *Node, o Options) error {
	const attempts = 5
	for attempt := 1; ; attempt++ {
		if err := p.writeKubeconfig(first); err != nil {
			return err
		}
		if err := p.startProxy(); err != nil {
			return err
		}
		err := p.waitEndpoint(ctx, o.Timeout)
		if err == nil || p.Proxy.Alive() || o.APIPort != 0 || attempt == attempts {
			return err
		}
		if p.APIPort, err = freePort(0); err != nil {
			return err
		}
	}
}

// startProxy starts the proxy unless it runs. It forwards to the live servers.
func (p *Plan) startProxy() error {
	if p.Proxy.Alive() {
		return nil
	}
	self, err := os.Executable()
	if err != nil {
		return err
	}
	command := []string{self, "proxy", "--listen", fmt.Sprintf("127.0.0.1:%d", p.APIPort), "--kubeconfig",
		p.Kubeconfig()}
	for _, s := range p.servers() {
		command = append(command, "--server", p.apiAddr(s))
	}
	p.Proxy, err = start("", p.proxyLog(), command)
	return errors.Join(err, p.save())
}

func (p *Plan) proxyLog() string { return filepath.Join(p.Dir, "proxy.log") }

// clientBy returns a client of a kubeconfig, for another server if one is given. Its requests are
// short, so that a server that hangs does not use up the whole wait.
func clientBy(server, kubeconfig string) (*kubernetes.Clientset, *rest.Config, error) {
	config, err := clientcmd.BuildConfigFromFlags(server, kubeconfig)
	if err != nil {
		return nil, nil, err
	}
	config.Timeout = 2 * time.Second
	client, err := kubernetes.NewForConfig(config)
	return client, config, err
}

// waitEndpoint waits until the kubeconfig leads to this cluster. Another cluster at the same port
// does not pass: it has another CA.
func (p *Plan) waitEndpoint(ctx context.Context, timeout time.Duration) error {
	client, _, err := clientBy("", p.Kubeconfig())
	if err != nil {
		return err
	}
	return poll(ctx, p.Proxy, "the endpoint's proxy", p.proxyLog(), timeout, "does not lead to the cluster",
		func(ctx context.Context) error {
			return client.Discovery().RESTClient().Get().AbsPath("/readyz").Do(ctx).Error()
		})
}

// waitServing waits until the server is ready, and returns a client configuration for it. voters is
// for members of the store: the wait ends early when too few of the voters run.
func (p *Plan) waitServing(ctx context.Context, n *Node, timeout time.Duration, voters Voters) (*rest.Config, error) {
	var config *rest.Config
	err := p.wait(ctx, n, timeout, "does not become ready", func(ctx context.Context) error {
		client, c, err := clientBy("https://"+p.apiAddr(n), p.nodeKubeconfig(n))
		if err != nil {
			return err
		}
		readyz := client.Discovery().RESTClient().Get
		err = readyz().AbsPath("/readyz").Do(ctx).Error()
		if err == nil {
			config = c
			return nil
		}
		if answers := (*apierrors.StatusError)(nil); voters != nil && errors.As(err, &answers) {
			if who, err := voters(ctx, c); err == nil {
				if err := p.quorum(who); err != nil {
					return err
				}
			}
		}
		// /readyz fails, and its answer usually has the reason.
		if reason, e := readyz().AbsPath("/readyz/store").Do(ctx).Raw(); e != nil && len(reason) > 0 {
			return fmt.Errorf("%w; %s", err, bytes.TrimSpace(reason))
		}
		return err
	})
	return config, err
}

// waitNodes waits until every node is Ready in the API.
func (p *Plan) waitNodes(ctx context.Context, o Options) error {
	client, _, err := clientBy("", p.Kubeconfig())
	if err != nil {
		return err
	}
	for i := range p.Nodes {
		n := &p.Nodes[i]
		err := p.wait(ctx, n, o.Timeout, "does not become Ready", func(ctx context.Context) error {
			node, err := client.CoreV1().Nodes().Get(ctx, n.Name, metav1.GetOptions{})
			if err != nil {
				return err
			}
			for _, c := range node.Status.Conditions {
				if c.Type == corev1.NodeReady && c.Status == corev1.ConditionTrue {
					return nil
				} else if c.Type == corev1.NodeReady {
					return fmt.Errorf("its Ready condition is %s: %s", c.Status, c.Message)
				}
			}
			return errors.New("it has no Ready condition yet")
		})
		if err != nil {
			return err
		}
	}
	o.Progress("all %d nodes are Ready", len(p.Nodes))
	return nil
}

// wait repeats try until it succeeds, the node's process ends, or the time is over.
func (p *Plan) wait(
	ctx context.Context, n *Node, timeout time.Duration, what string, try func(context.Context) error,
) error {
	return poll(ctx, n.Process, n.Name, p.LogFile(n), timeout, what, try)
}

// hopeless reports whether a longer wait is useless.
func hopeless(err error) bool { return errors.Is(err, errTooFew) || errors.Is(err, ErrLeftBehind) }

// poll does the work of wait; try gives up with an error that is hopeless.
func poll(
	ctx context.Context, process *Process, name, log string, timeout time.Duration, what string,
	try func(context.Context) error,
) error {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	ticker := time.NewTicker(50 * time.Millisecond)
	defer ticker.Stop()
	var last error
	for {
		err := try(ctx)
		if err == nil {
			return nil
		}
		if ctx.Err() == nil {
			last = err
		}
		if !process.Alive() {
			return fmt.Errorf("%s has ended; its last words (%s):\n%s", name, log, process.words(log, 12))
		}
		if hopeless(err) {
			return err
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("%s %s: %w; its last words (%s):\n%s", name, what, errors.Join(last, context.Cause(ctx)),
				log, process.words(log, 12))
		case <-ticker.C:
		}
	}
}

// words returns the last lines of this process in the file, which earlier processes have written to
// as well.
func (p *Process) words(file string, lines int) string {
	data, err := os.ReadFile(file)
	if err != nil {
		return err.Error()
	}
	if p != nil && p.Log > 0 && p.Log <= int64(len(data)) {
		data = data[p.Log:]
	}
	if len(data) == 0 {
		return "    (none)"
	}
	all := strings.Split(strings.TrimRight(string(data), "\n"), "\n")
	return "    " + strings.Join(all[max(0, len(all)-lines):], "\n    ")
}

// ServerAddrs returns where the API servers are.
func (p *Plan) ServerAddrs() []netip.AddrPort {
	var out []netip.AddrPort
	for _, s := range p.servers() {
		out = append(out, netip.AddrPortFrom(s.Addr, apiPort))
	}
	return slices.Clip(out)
}

package node

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/barque/barque/apiserver/audit"
	"github.com/barque/barque/apiserver/storeerror"
	"github.com/barque/barque/cmd/barque/node/options"
	"github.com/barque/barque/internal/needs"
	"github.com/barque/barque/internal/osthread"
	"github.com/barque/barque/internal/procstat"
	"github.com/barque/barque/internal/syncbuf"
	"github.com/barque/barque/membership/enroll"
	"github.com/barque/barque/membership/token"
)

// Servers as separate processes, each this test's binary again, in a network namespace of the
// test's, where all addresses are the loopback's. They show effects that cannot be seen inside one
// process. They run no pods.

// childEnv holds the order of a process that is to be a server.
const childEnv = "BARQUE_TEST_SERVER"

// order is the configuration of such a process.
type order struct {
	options.Options
	// Hold is a directory. While it has a file "arm", the first leader that creates a pod stops
	// there: see holdPods.
	Hold string
	// AuditPolicy is a file; "" is the default policy.
	AuditPolicy string
}

func TestMain(m *testing.M) {
	text := os.Getenv(childEnv)
	if text == "" {
		os.Exit(m.Run())
	}
	var o order
	if err := json.Unmarshal([]byte(text), &o); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(2)
	}
	if o.Hold != "" {
		o.WrapLeaderClient = holdPods(o.Hold)
	}
	if o.AuditPolicy != "" {
		o.Audit = audit.NewOptions()
		o.Audit.PolicyFile = o.AuditPolicy
	}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	if err := RunServer(ctx, o.Options, slog.New(slog.NewTextHandler(os.Stderr, nil))); err != nil {
		fmt.Fprintln(os.Stderr, "child:", err)
		os.Exit(1)
	}
	os.Exit(0)
}

// space is the network namespace of a test.
type space struct{ handle netns.NsHandle }

func newSpace(t *testing.T) *space {
	t.Helper()
	needs.Root(t, "servers as processes: fencing, stopping")
	s := &space{}
	if err := osthread.Do(s.make); err != nil { // the namespace ends with the last descriptor
		t.Fatal(err)
	}
	t.Cleanup(func() { s.handle.Close() })
	return s
}

func (s *space) make() (err error) {
	if s.handle, err = netns.New(); err != nil {
		return err
	}
	lo, err := netlink.LinkByName("lo")
	if err != nil {
		return err
	}
	for i := range 3 {
		if err := netlink.AddrAdd(lo,
			&netlink.Addr{IPNet: &net.IPNet{IP: net.ParseIP(addressOf(i)), Mask: net.CIDRMask(32, 32)}}); err != nil {
			return err
		}
	}
	return netlink.LinkSetUp(lo)
}

// addressOf is that of the i-th server.
func addressOf(i int) string { return fmt.Sprintf("10.88.0.%d", i+1) }

// dial connects from inside the namespace.
func (s *space) dial(ctx context.Context, network, address string) (conn net.Conn, err error) {
	err = osthread.Do(func() error {
		if err := netns.Set(s.handle); err != nil {
			return err
		}
		conn, err = (&net.Dialer{}).DialContext(ctx, network, address)
		return err
	})
	return conn, err
}

// process is a server in its own process.
type process struct {
	t     *testing.T
	space *space
	order order
	cmd   *exec.Cmd
	log   *syncbuf.Buffer // what it says
	ended chan struct{}
	err   error // once it has ended
}

// startProcess starts a server. It is killed when the test ends, and when the test dies.
func (s *space) startProcess(t *testing.T, o order) *process {
	t.Helper()
	data, err := json.Marshal(o)
	if err != nil {
		t.Fatal(err)
	}
	p := &process{t: t, space: s, order: o, log: new(syncbuf.Buffer), ended: make(chan struct{})}
	p.cmd = exec.Command(os.Args[0])
	p.cmd.Env = append(os.Environ(), childEnv+"="+string(data))
	p.cmd.Stderr = p.log
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	started := make(chan error, 1)
	go func() { // ends with the process
		defer close(p.ended)
		// The signal comes when the thread ends that has started the process: this one lives as
		// long.
		p.err = osthread.Do(func() error {
			err := netns.Set(s.handle)
			if err == nil {
				err = p.cmd.Start()
			}
			started <- err
			if err != nil {
				return err
			}
			return p.cmd.Wait()
		})
	}()
	if err := <-started; err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		p.signal(syscall.SIGKILL)
		<-p.ended
		if t.Failed() {
			lines := strings.Split(p.log.String(), "\n")
			t.Logf("%s said at last:\n%s", o.Name, strings.Join(lines[max(0, len(lines)-40):], "\n"))
		}
	})
	return p
}

func (p *process) signal(s syscall.Signal) {
	if err := p.cmd.Process.Signal(s); err != nil && !errors.Is(err, os.ErrProcessDone) {
		p.t.Error(err)
	}
}

// paused tells whether the process is stopped by a signal.
func (p *process) paused() bool {
	stat, err := procstat.Read(p.cmd.Process.Pid)
	return err == nil && stat.Stopped()
}

// config leads to this server as an administrator.
func (p *process) config() (*rest.Config, error) {
	config, err := clientcmd.BuildConfigFromFlags("", filepath.Join(p.order.DataDir, "admin.kubeconfig"))
	if err == nil {
		config.QPS, config.Timeout, config.Dial = -1, time.Minute, p.space.dial
	}
	return config, err
}

func (p *process) client() kubernetes.Interface {
	p.t.Helper()
	config, err := p.config()
	if err != nil {
		p.t.Fatal(err)
	}
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		p.t.Fatal(err)
	}
	return client
}

// ready is nil when the server reports that it is ready.
func (p *process) ready(ctx context.Context) error {
	select {
	case <-p.ended:
		return fmt.Errorf("%s has ended: %v", p.order.Name, p.err)
	default:
	}
	config, err := p.config()
	if err != nil {
		return err
	}
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		return err
	}
	return client.Discovery().RESTClient().Get().AbsPath("/readyz").Do(ctx).Error()
}

// patience is for operations of seconds, and longer if other packages are tested at the same time.
const patience = 4 * time.Minute

// until repeats try until it returns nil.
func until(t *testing.T, limit time.Duration, what string, try func(ctx context.Context) error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), limit)
	defer cancel()
	ticker := time.NewTicker(20 * time.Millisecond)
	defer ticker.Stop()
	for {
		err := try(ctx)
		if err == nil {
			return
		}
		select {
		case <-ticker.C:
		case <-ctx.Done():
			t.Fatalf("%s: not within %v: %v", what, limit, err)
		}
	}
}

// newOrder is the configuration of a test's i-th server. Each has its own port for the API, which
// is served on all addresses.
func newOrder(t *testing.T, i int, hold string) order {
	t.Helper()
	return order{Hold: hold, Options: options.Options{
		DataDir: t.TempDir(), Name: fmt.Sprintf("s%d", i+1), NodeIPs: []string{addressOf(i)},
		APIPort: uint16(6443 + 100*i), PeerPort: 6444,
		Settings: options.DefaultSettings(), Times: options.DefaultTimes(), NoNode: true, MinVoters: 3,
	}}
}

// startThree starts a cluster of three and waits until all are ready and vote.
func startThree(t *testing.T, hold string) []*process {
	t.Helper()
	return startThreeFrom(t, newOrder(t, 0, hold))
}

// startThreeFrom is startThree with the configuration of the first server.
func startThreeFrom(t *testing.T, begins order) []*process {
	t.Helper()
	s, hold := newSpace(t), begins.Hold
	first := s.startProcess(t, begins)
	until(t, patience, "s1 is ready", first.ready)
	var key token.Made
	until(t, patience, "a token", func(ctx context.Context) (err error) {
		key, err = token.Create(ctx, first.client().Discovery().RESTClient(),
			token.Spec{Role: token.Server, TTL: time.Hour})
		return err
	})
	all := []*process{first}
	for i := 1; i < 3; i++ {
		o := newOrder(t, i, hold)
		o.Join, o.Token = fmt.Sprintf("https://%s:%d", first.order.NodeIPs[0], first.order.APIPort), key.Token
		all = append(all, s.startProcess(t, o))
	}
	for _, p := range all {
		until(t, patience, p.order.Name+" is ready", p.ready)
		if r, err := enroll.Load(p.order.DataDir); err != nil || r.Cluster.GossipPort != enroll.GossipPort {
			t.Fatalf("%s has not the cluster's port of gossip: %+v, %v", p.order.Name, r, err)
		}
	}
	until(t, patience, "three votes", func(ctx context.Context) error {
		voters, err := first.metric(ctx, "barque_store_voters")
		if err == nil && voters != 3 {
			err = fmt.Errorf("there are %v", voters)
		}
		return err
	})
	return all
}

// Files by which a server that holds, and the test, tell each other how far they are.
const (
	armFile    = "arm"
	heldFile   = "held"   // the name of the server and the term
	answerFile = "answer" // the API's answer to the write
)

// stopHere stops the process before it returns. Another thread may take a signal to the whole
// process, and until that one gets a CPU this one would continue.
func stopHere() error {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	return unix.Tgkill(os.Getpid(), unix.Gettid(), unix.SIGSTOP)
}

// holdPods stops this process, as SIGSTOP from outside would, at the first creation of a pod by a
// controller while the file "arm" exists: after the decision, before the request. When the process
// continues, the write is sent in any case, and the answer recorded. A server that does not know
// yet that it was deposed may take the write and lose it: such an answer is "outcome unknown", and
// the write is sent again.
func holdPods(dir string) func(uint64, http.RoundTripper) http.RoundTripper {
	return func(term uint64, next http.RoundTripper) http.RoundTripper {
		return roundTripFunc(func(r *http.Request) (*http.Response, error) {
			if r.Method != http.MethodPost || !strings.HasSuffix(r.URL.Path, "/pods") ||
				os.Remove(filepath.Join(dir, armFile)) != nil {
				return next.RoundTrip(r)
			}
			if err := os.WriteFile(filepath.Join(dir, heldFile), fmt.Appendf(nil, "%d", term), 0o600); err != nil {
				return nil, err
			}
			if err := stopHere(); err != nil {
				return nil, err
			}
			// The end of the term cancels the request's context; here the request is to arrive.
			response, said, err := send(r.WithContext(context.WithoutCancel(r.Context())), next)
			if err := os.WriteFile(filepath.Join(dir, answerFile), []byte(said), 0o600); err != nil {
				return nil, err
			}
			return response, err
		})
	}
}

// send sends a request until its outcome is known, and returns the answer, also as text.
func send(r *http.Request, next http.RoundTripper) (*http.Response, string, error) {
	for {
		response, err := next.RoundTrip(r)
		if err != nil {
			return nil, err.Error(), err
		}
		var body bytes.Buffer
		_, err = body.ReadFrom(response.Body)
		response.Body.Close()
		if response.StatusCode == http.StatusGatewayTimeout &&
			bytes.Contains(body.Bytes(), []byte(storeerror.CauseOutcomeUnknown)) {
			again, err := r.GetBody()
			if err != nil {
				return nil, err.Error(), err
			}
			r = r.Clone(r.Context())
			r.Body = again
			continue
		}
		response.Body = http.NoBody
		return response, fmt.Sprintf("%s %s %v", response.Status, body.Bytes(), err), nil
	}
}

type roundTripFunc func(*http.Request) (*http.Response, error)

func (f roundTripFunc) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

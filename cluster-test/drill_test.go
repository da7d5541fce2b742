package clustertest

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/netip"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/barque/barque/cluster-test/machines"
	"github.com/barque/barque/cluster-test/runbook"
)

const operationsPage = "../docs/operations.md"

// drill performs the procedures of docs/operations.md, on machines that have the addresses, names
// and paths of that page.
type drill struct {
	*testing.T // of the stage that runs
	book       *runbook.Book
	lab        *machines.Lab
	flags      map[string]string // by machine: flags of each start of barque beside those of the page
	performed  map[string]bool   // section and command

	mu      sync.Mutex
	running map[*machines.Machine]*machines.Process // the process that was served last
}

// newDrill makes a lab without machines; it goes when the test ends.
func newDrill(t *testing.T) *drill {
	t.Helper()
	book, err := runbook.Read(operationsPage)
	if err != nil {
		t.Fatal(err)
	}
	binary, err := Binary()
	if err != nil {
		t.Fatal(err)
	}
	dir, err := os.MkdirTemp("", "bq-drill-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := os.RemoveAll(dir); err != nil {
			t.Error(err)
		}
	})
	lab, err := machines.New(dir, binary, netip.MustParsePrefix("10.0.0.254/12"))
	if err != nil {
		t.Fatal(err)
	}
	d := &drill{T: t, book: book, lab: lab, flags: map[string]string{}, performed: map[string]bool{},
		running: map[*machines.Machine]*machines.Process{}}
	t.Cleanup(func() {
		d.T = t
		if t.Failed() {
			d.dump()
		}
		if err := lab.Close(); err != nil {
			t.Error(err)
		}
	})
	return d
}

// dump shows the last words of each machine.
func (d *drill) dump() {
	for m := range d.running {
		log, err := os.ReadFile(m.Log())
		if err != nil {
			d.Log(err)
		}
		lines := slices.DeleteFunc(strings.Split(strings.TrimSpace(string(log)), "\n"), func(line string) bool {
			return strings.Contains(line, "part=k8s") // a server without a leader has too many of these
		})
		d.Logf("the last words of %s:\n%s", m.Name, strings.Join(lines[max(0, len(lines)-50):], "\n"))
	}
}

// stage is a part of the drill; the parts after a failed one are left out.
func (d *drill) stage(name string, part func()) {
	d.Helper()
	whole := d.T
	defer func() { d.T = whole }()
	began := time.Now()
	if !whole.Run(name, func(t *testing.T) { d.T = t; part() }) {
		whole.FailNow()
	}
	whole.Logf("%s took %v", name, time.Since(began).Round(100*time.Millisecond))
}

// machine makes a machine, with a disk of the size, or one without a limit when that is 0.
func (d *drill) machine(name, address string, diskMegabytes int, flags string) *machines.Machine {
	d.Helper()
	m, err := d.lab.NewMachine(name, network(address), diskMegabytes)
	if err != nil {
		d.Fatal(err)
	}
	d.flags[name] = flags
	return m
}

func network(address string) netip.Prefix {
	return netip.PrefixFrom(netip.MustParseAddr(address), 12)
}

// must fails the test when an act on a machine failed.
func (d *drill) must(err error) {
	d.Helper()
	if err != nil {
		d.Fatal(err)
	}
}

// procedure is a section of the page.
type procedure struct {
	*drill
	section *runbook.Section
}

func (d *drill) procedure(title string) procedure {
	d.Helper()
	s, err := d.book.Section(title)
	if err != nil {
		d.Fatal(err)
	}
	return procedure{d, s}
}

// words returns the command as the page has it, with other names in it, and notes that it was
// performed.
func (p procedure) words(command string, oldnew ...string) string {
	p.Helper()
	text, err := p.section.Find(command, oldnew...)
	if err != nil {
		p.Fatal(err)
	}
	p.performed[p.section.Title+": "+command] = true
	return text
}

// run performs a command of the page, which must succeed. All questions are answered with yes.
func (p procedure) run(m *machines.Machine, command string, oldnew ...string) string {
	p.Helper()
	return p.shell(m, p.words(command, oldnew...))
}

// insist is run, again for as long as the command is refused, as it is while one of the servers
// does not answer for a moment.
func (p procedure) insist(m *machines.Machine, command string, oldnew ...string) string {
	p.Helper()
	return p.drill.insist(m, p.words(command, oldnew...))
}

// insist is shell, again for as long as the command is refused.
func (d *drill) insist(m *machines.Machine, command string) (out string) {
	d.Helper()
	Eventually(d, deadline, "on "+m.Name+": "+command, func(context.Context) error {
		r := d.try(m, command)
		out = r.Out
		return r.Error
	})
	return out
}

// serve performs a command of the page that runs on.
func (p procedure) serve(m *machines.Machine, command string, oldnew ...string) {
	p.Helper()
	p.start(m, p.words(command, oldnew...))
}

// shell runs a command on a machine; it must succeed.
func (d *drill) shell(m *machines.Machine, command string) string {
	d.Helper()
	r := d.try(m, command)
	if r.Error != nil {
		d.Fatalf("on %s: %v", m.Name, r.Error)
	}
	return r.Out
}

func (d *drill) try(m *machines.Machine, command string) machines.Result {
	ctx, cancel := context.WithTimeout(d.Context(), commandTimeout)
	defer cancel()
	return m.Run(ctx, "y\n", command)
}

// start starts barque on a machine.
func (d *drill) start(m *machines.Machine, command string) {
	d.Helper()
	p, err := m.Serve(command + " " + d.flags[m.Name])
	if err != nil {
		d.Fatal(err)
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.running[m] = p
}

func (d *drill) process(m *machines.Machine) *machines.Process {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.running[m]
}

// stop stops barque on machines as init systems do, all at once.
func (d *drill) stop(all ...*machines.Machine) {
	d.Helper()
	ctx, cancel := context.WithTimeout(d.Context(), deadline)
	defer cancel()
	var group sync.WaitGroup
	for _, m := range all {
		group.Go(func() {
			if r := d.process(m).Stop(ctx); r.Error != nil {
				d.Errorf("stop barque on %s: %v", m.Name, r.Error)
			}
		})
	}
	group.Wait()
}

// ended waits until barque on the machine ends by itself, and returns its code.
func (d *drill) ended(m *machines.Machine) int {
	d.Helper()
	ctx, cancel := context.WithTimeout(d.Context(), deadline)
	defer cancel()
	return d.process(m).Wait(ctx).Code
}

// alive is an error when barque has ended on the machine.
func (d *drill) alive(m *machines.Machine) error {
	select {
	case <-d.process(m).Done():
		log, err := os.ReadFile(m.Log())
		return errors.Join(err,
			fmt.Errorf("barque on %s has ended; its log ends with\n%s", m.Name, log[max(0, len(log)-3000):]))
	default:
		return nil
	}
}

// config is the administrator's on a server, from the switch.
func (d *drill) config(m *machines.Machine) (*rest.Config, error) {
	kubeconfig, err := os.ReadFile(m.Path(machines.DataDir + "/admin.kubeconfig"))
	if err != nil {
		return nil, err
	}
	config, err := clientcmd.RESTConfigFromKubeConfig(kubeconfig)
	if err != nil {
		return nil, err
	}
	config.Host, config.Dial, config.QPS, config.Timeout = "https://"+m.Address().String()+":6443", d.lab.Dial, -1,
		10*time.Second
	return config, nil
}

// api returns a client of one server.
func (d *drill) api(m *machines.Machine) *kubernetes.Clientset {
	d.Helper()
	config, err := d.config(m)
	if err != nil {
		d.Fatal(err)
	}
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		d.Fatal(err)
	}
	return client
}

// ready waits until the servers serve.
func (d *drill) ready(all ...*machines.Machine) {
	d.Helper()
	for _, m := range all {
		Eventually(d, 2*deadline, m.Name+" is ready", func(ctx context.Context) error {
			if err := d.alive(m); err != nil {
				d.Fatal(err)
			}
			config, err := d.config(m)
			if err != nil {
				return err
			}
			client, err := rest.HTTPClientFor(config)
			if err != nil {
				return err
			}
			defer client.CloseIdleConnections()
			request, err := http.NewRequestWithContext(ctx, http.MethodGet, config.Host+"/readyz", nil)
			if err != nil {
				return err
			}
			answer, err := client.Do(request)
			if err != nil {
				return err
			}
			defer answer.Body.Close()
			if answer.StatusCode != http.StatusOK {
				return errors.New(answer.Status)
			}
			return nil
		})
	}
}

// status is the answer of `barque cluster status` on a machine.
func (d *drill) status(m *machines.Machine) (*Status, error) {
	r := d.try(m, "barque cluster status -o json")
	if r.Error != nil && r.Code != codeDegraded && r.Code != codeNoQuorum {
		return nil, r.Error
	}
	s := new(Status)
	return s, json.Unmarshal([]byte(r.Out), s)
}

// whole waits until the servers, and no others, are the members, all vote, and all have one state.
func (d *drill) whole(servers ...*machines.Machine) *Status {
	d.Helper()
	var status *Status
	Eventually(d, 2*deadline, "a whole cluster", func(context.Context) (err error) {
		if status, err = d.status(servers[0]); err != nil {
			return err
		}
		return isWhole(status, servers)
	})
	return status
}

func isWhole(status *Status, servers []*machines.Machine) error {
	voters, state := 0, ""
	for _, member := range status.Members {
		if member.Role != "server" {
			continue
		}
		if member.Store == nil || member.Store.State != "leader" && member.Store.State != "follower" {
			return fmt.Errorf("%s is %+v: %s", member.Name, member.Store, member.Problem)
		}
		own := fmt.Sprint(member.Store.Revision, " ", member.Store.Hash)
		if state == "" {
			state = own
		}
		if own != state {
			return fmt.Errorf("%s is at %s, another one at %s", member.Name, own, state)
		}
		for _, m := range servers {
			if m.Name == member.Name && m.Address().String() == member.Address {
				voters++
			}
		}
	}
	servingNames := func() (names []string) {
		for _, member := range status.Members {
			names = append(names, member.Name+" "+member.Address)
		}
		return names
	}
	if want := len(servers); voters != want || countServers(status) != want {
		return fmt.Errorf("the members are %q, want %d", servingNames(), want)
	}
	return nil
}

func countServers(s *Status) (n int) {
	for _, m := range s.Members {
		if m.Role == "server" {
			n++
		}
	}
	return n
}

// give puts a token, or any other text, into /etc/barque/token of machines.
func (d *drill) give(text string, all ...*machines.Machine) {
	d.Helper()
	for _, m := range all {
		d.must(os.WriteFile(m.Path("/etc/barque/token"), []byte(text), 0o600))
	}
}

// note writes a ConfigMap, and noted reads it.
func (d *drill) note(m *machines.Machine, name string) {
	d.Helper()
	configs := d.api(m).CoreV1().ConfigMaps("default")
	Eventually(d, deadline, "a write", func(ctx context.Context) error {
		_, err := configs.Create(ctx, &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: name}},
			metav1.CreateOptions{})
		return exceptExists(err)
	})
}

func (d *drill) noted(m *machines.Machine, names ...string) {
	d.Helper()
	for _, name := range names {
		Eventually(d, deadline, name+" is there", func(ctx context.Context) error {
			_, err := d.api(m).CoreV1().ConfigMaps("default").Get(ctx, name, metav1.GetOptions{})
			return err
		})
	}
}

// pod starts a pod on a node and waits until it is ready.
func (d *drill) pod(m *machines.Machine, name, node string) *corev1.Pod {
	d.Helper()
	pods := d.api(m).CoreV1().Pods("default")
	wanted := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: corev1.PodSpec{
		NodeSelector: map[string]string{corev1.LabelHostname: node},
		Containers:   []corev1.Container{{Name: "hello", Image: "barque.local/hello:1"}},
	}}
	Eventually(d, deadline, "pod "+name+" is made", func(ctx context.Context) error {
		_, err := pods.Create(ctx, wanted, metav1.CreateOptions{})
		return exceptExists(err)
	})
	var pod *corev1.Pod
	Eventually(d, 2*deadline, "pod "+name+" on "+node, func(ctx context.Context) (err error) {
		if pod, err = pods.Get(ctx, name, metav1.GetOptions{}); err != nil {
			return err
		}
		if !Ready(pod) {
			return fmt.Errorf("its status is %+v", pod.Status)
		}
		return nil
	})
	return pod
}

// complete fails when the page has commands that were not performed.
func (d *drill) complete() {
	d.Helper()
	for _, c := range unperformed(d.book, d.performed) {
		d.Errorf(
			"%s has a command that no test performs: %s\n(perform it here, or name the test that does in performedElsewhere)", operationsPage, c)
	}
}

package verify

import (
	"context"
	crand "crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
)

// Options of Cluster.
type Options struct {
	Config   *rest.Config
	Duration time.Duration // of reading and writing
	Pods     bool          // start pods too
	// Progress receives a line about each finished step; it may be nil.
	Progress func(format string, args ...any)
	// Undone reports whether the error of a write proves that the write changed nothing. One such
	// error is that there is no leader. It may be nil.
	Undone func(error) bool
}

// Report has the results of Cluster.
type Report struct {
	Cluster      string   `json:"cluster"`
	Servers      []string `json:"servers"`
	Seconds      float64  `json:"seconds"`
	Acknowledged int      `json:"acknowledgedWrites"` // of the probe
	LongestGap   string   `json:"longestTimeWithoutAWrite"`
	Checks       []Check  `json:"checks"`
	CutShortBy   string   `json:"cutShortBy,omitempty"` // the error of Cluster; empty: the run was complete
}

// A LeftError is returned when objects of the run could not be removed.
type LeftError struct {
	Namespace string
	cause     error
}

func (e *LeftError) Error() string {
	return fmt.Sprintf("remove the namespace %[1]s: %[2]v; `barque kubectl delete namespace %[1]s` does it",
		e.Namespace, e.cause)
}
func (e *LeftError) Unwrap() error { return e.cause }

// Check is the result for one promise of the cluster.
type Check struct {
	Name     string   `json:"name"`
	Detail   string   `json:"detail,omitempty"`
	Problems []string `json:"problems,omitempty"` // how the promise was broken
	Unjudged []string `json:"unjudged,omitempty"` // why the promise, or a part of it, could not be judged
}

// Broken reports whether a promise was broken.
func (r *Report) Broken() bool {
	return slices.ContainsFunc(r.Checks, func(c Check) bool { return len(c.Problems) > 0 })
}

// Unjudged reports whether a promise, or a part of one, could not be judged.
func (r *Report) Unjudged() bool {
	return slices.ContainsFunc(r.Checks, func(c Check) bool { return len(c.Unjudged) > 0 })
}

// checking is one run of Cluster.
type checking struct {
	Options
	client    kubernetes.Interface
	servers   []Server // the servers that were reachable at the start
	turn      int      // the index of the server that is asked
	namespace string
	report    *Report
}

const (
	// namespacePrefix begins the name of a run's namespace, which is removed after the run.
	namespacePrefix = "barque-verify-"
	// settleTime bounds waits for changes that take seconds in a healthy cluster.
	settleTime = time.Minute
	// askTime bounds one request. A live server answers in it, also one that has just lost its
	// leader: it holds a request for the next leader for ten seconds. A create has all of askTime,
	// also when the run was interrupted meanwhile.
	askTime = 15 * time.Second
	// removeTime bounds the removal, also when the run was interrupted.
	removeTime = 2 * time.Minute
)

// Cluster works through all servers of a cluster for a while and reports its findings. It works in
// a namespace of its own, which it removes. It breaks nothing.
//
// The error says why the run ended early, or why the removal failed (a LeftError). The report has
// the findings until then. It is nil when the run has made nothing.
func Cluster(ctx context.Context, o Options) (_ *Report, err error) {
	if o.Progress == nil {
		o.Progress = func(string, ...any) {}
	}
	c := &checking{Options: o, report: &Report{Seconds: o.Duration.Seconds()},
		namespace: fmt.Sprintf("%s%05d", namespacePrefix, rand.IntN(100000))}
	if c.client, err = kubernetes.NewForConfig(o.Config); err != nil {
		return nil, err
	}
	if err := c.reach(ctx); err != nil {
		return nil, err
	}
	err = c.makeNamespace(ctx)
	// another run has the namespace, or there is none
	if apierrors.IsAlreadyExists(err) || apierrors.IsForbidden(err) || err != nil && o.Undone != nil && o.Undone(err) {
		return nil, fmt.Errorf("make the namespace %s: %w", c.namespace, err)
	}
	defer func() {
		if err = errors.Join(err, c.remove(context.WithoutCancel(ctx))); err != nil {
			c.report.CutShortBy = err.Error()
		}
	}()
	if err != nil {
		return c.report, fmt.Errorf("make the namespace %s: %w", c.namespace, err)
	}
	if o.Pods {
		if err := c.pods(ctx); err != nil {
			return c.report, err
		}
	}
	if err := c.work(ctx); err != nil {
		return c.report, err
	}
	c.same(ctx)
	return c.report, context.Cause(ctx)
}

// add adds a check to the report.
func (c *checking) add(name, detail string, problems ...string) {
	c.note(Check{Name: name, Detail: detail, Problems: problems})
}

// note adds a check to the report.
func (c *checking) note(k Check) {
	switch {
	case len(k.Problems) > 0:
		k.Detail = ""
		c.Progress("%s: NOT KEPT: %s", k.Name, k.Problems[0])
	case len(k.Unjudged) > 0:
		c.Progress("%s: could not be judged: %s", k.Name, k.Unjudged[0])
	default:
		c.Progress("%s: %s", k.Name, k.Detail)
	}
	c.report.Checks = append(c.report.Checks, k)
}

// status has the fields of the servers' status that this package reads.
type status struct {
	ID      string
	Leader  string
	Members []member
}

// member is one node of the status.
type member struct {
	Name, Role, Address, Problem, Gossip string
	Store                                *storeState
}

// storeState is a server's report on its own store.
type storeState struct {
	Revision    uint64
	StateHash   string
	Quarantined string
}

func (c *checking) status(ctx context.Context) (*status, error) {
	var data []byte
	err := c.insist(ctx, func(ctx context.Context, client kubernetes.Interface) (err error) {
		data, err = client.Discovery().RESTClient().Get().AbsPath("/barque/v1/status").DoRaw(ctx)
		var refusal metav1.Status // client-go gives raw data the reason Unknown without parsing it
		if err != nil && json.Unmarshal(data, &refusal) == nil && refusal.Message != "" {
			err = &apierrors.StatusError{ErrStatus: refusal}
		}
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("ask for the cluster's status: %w", err)
	}
	s := new(status)
	return s, json.Unmarshal(data, s)
}

// reach finds the servers, and requires an answer from each.
func (c *checking) reach(ctx context.Context) error {
	s, err := c.status(ctx)
	if err != nil {
		return err
	}
	c.report.Cluster = s.ID
	port, err := c.port(ctx)
	if err != nil {
		return err
	}
	var problems []string
	for _, m := range s.Members {
		if m.Role != "server" {
			continue
		}
		server, err := NewServer(m.Name, "https://"+net.JoinHostPort(m.Address, strconv.Itoa(port)), c.Config)
		if err != nil {
			return err
		}
		limited, cancel := context.WithTimeout(ctx, 5*time.Second)
		err = server.Client.Discovery().RESTClient().Get().AbsPath("/readyz").Do(limited).Error()
		cancel()
		if err != nil {
			problems = append(problems, fmt.Sprintf("%s at %s: %v", m.Name, m.Address, err))
			continue
		}
		c.servers, c.report.Servers = append(c.servers, server), append(c.report.Servers, m.Name)
	}
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	c.add("every server can be reached from here, and is ready", strings.Join(c.report.Servers, ", "), problems...)
	if len(c.servers) == 0 {
		return fmt.Errorf("no server can be reached from here: %s", strings.Join(problems, "; "))
	}
	return nil
}

// port returns the port of the API, from the Service "kubernetes".
func (c *checking) port(ctx context.Context) (int, error) {
	var list *discoveryv1.EndpointSliceList
	err := c.insist(ctx, func(ctx context.Context, client kubernetes.Interface) (err error) {
		list, err = client.DiscoveryV1().EndpointSlices(metav1.NamespaceDefault).List(ctx,
			metav1.ListOptions{LabelSelector: discoveryv1.LabelServiceName + "=kubernetes"})
		return err
	})
	if err != nil {
		return 0, fmt.Errorf("find the API servers: ask %s: %w", c.Config.Host, err)
	}
	for _, s := range list.Items {
		for _, p := range s.Ports {
			if p.Port != nil {
				return int(*p.Port), nil
			}
		}
	}
	return 0, errors.New("the Service kubernetes has no endpoints: no API server is known")
}

// work reads, writes and watches through all servers.
func (c *checking) work(ctx context.Context) error {
	c.Progress("reading, writing and watching through %s for %v", strings.Join(c.report.Servers, ", "), c.Duration)
	seed := rand.Uint64()
	p := NewProbe(c.servers, c.namespace, "probe")
	p.Start(ctx)
	verdict, err := rounds{total: c.Duration, each: roundTime, progress: c.Progress,
		start: func(n int) (stopper, error) {
			return Start(ctx,
				Config{Servers: c.servers, Namespace: c.namespace, Run: fmt.Sprintf("verify-%d", n),
					Seed: seed + uint64(n)})
		}}.run(ctx)
	probed, probeErr := p.Stop(context.WithoutCancel(ctx), endPatience(ctx)) // interrupted work ends in order
	return errors.Join(c.judged(verdict, err, &probed, probeErr), context.Cause(ctx))
}

// judged adds the findings to the report and returns the errors that ended the work early. Promises
// of the rest are then unjudged; violations found before count.
func (c *checking) judged(verdict *Verdict, err error, probed *ProbeResult, probeErr error) error {
	if err != nil {
		verdict.Unjudged = append(verdict.Unjudged, err.Error())
	}
	if probeErr != nil {
		probed.Unjudged = append(probed.Unjudged, probeErr.Error())
	}
	c.report.Acknowledged, c.report.LongestGap = probed.Acknowledged, probed.Longest.Round(time.Millisecond).String()
	c.note(
		Check{"reads and writes are linearizable, no acknowledged write is lost, watches tell everything in order",
			verdict.String(), verdict.Violations, verdict.Unjudged})
	c.note(
		Check{"a client that moves to the next server after 500 ms goes on",
			fmt.Sprintf("%d writes, the longest time without one %s",
				probed.Acknowledged, c.report.LongestGap), probed.Violations, probed.Unjudged})
	return errors.Join(err, probeErr)
}

// A silenceError is returned when no answer came in time. It is a context.DeadlineExceeded.
type silenceError struct{ limit time.Duration }

func (e *silenceError) Error() string { return fmt.Sprintf("no answer within %v", e.limit) }
func (e *silenceError) Unwrap() error { return context.DeadlineExceeded }

// within makes a request with a limit of time.
func within(ctx context.Context, limit time.Duration, ask func(context.Context) error) error {
	ctx, cancel := context.WithTimeoutCause(ctx, limit, &silenceError{limit})
	defer cancel()
	err := ask(ctx)
	if err != nil && ctx.Err() != nil {
		return context.Cause(ctx)
	}
	return err
}

// ask sends a request to the cluster. Until the servers are known it uses the kubeconfig's address.
// Then it uses the server that answered last, and the next one after a failure.
func (c *checking) ask(ctx context.Context, question func(context.Context, kubernetes.Interface) error) error {
	name, client := c.Config.Host, c.client
	if n := len(c.servers); n > 0 {
		name, client = c.servers[c.turn%n].Name, c.servers[c.turn%n].Client
	}
	err := within(ctx, askTime, func(ctx context.Context) error { return question(ctx, client) })
	if err != nil {
		c.turn++
		return fmt.Errorf("%s: %w", name, err)
	}
	return nil
}

// insist repeats a request after a failure that may pass: a broken connection, a server that is
// stopping, a change of leaders. Any other answer is final.
func (c *checking) insist(ctx context.Context, question func(context.Context, kubernetes.Interface) error) error {
	var final error
	err := until(ctx, settleTime, func(ctx context.Context) error {
		err := c.ask(ctx, question)
		if err != nil && !passing(err) || c.Undone != nil && err != nil && c.Undone(err) {
			final = err
			return nil
		}
		return err
	})
	return errors.Join(err, final)
}

// passing reports whether a request may succeed when it is repeated.
func passing(err error) bool {
	var answer apierrors.APIStatus
	if !errors.As(err, &answer) {
		return true // there was no answer, or not a whole one
	}
	code := answer.Status().Code
	return code >= http.StatusInternalServerError || code == http.StatusTooManyRequests
}

// create makes an object whose name only this run uses. If an answer is lost, the object may exist:
// the next attempt then finds it by its name.
func (c *checking) create(ctx context.Context, make func(context.Context, kubernetes.Interface) error) error {
	attempts := 0
	return c.insist(ctx, func(ctx context.Context, client kubernetes.Interface) error {
		attempts++
		err := make(ctx, client)
		if attempts > 1 && apierrors.IsAlreadyExists(err) {
			return nil
		}
		return err
	})
}

// runLabel marks a namespace with the run that made it.
const runLabel = "barque.io/verify-run"

// makeNamespace makes the namespace of this run. An interruption does not cut an attempt off: its
// namespace might exist then, and must be removed. A namespace of another run is not taken.
func (c *checking) makeNamespace(ctx context.Context) error {
	made := &corev1.Namespace{
		ObjectMeta: metav1.ObjectMeta{Name: c.namespace,
			Labels: map[string]string{runLabel: strings.ToLower(crand.Text())}}}
	return c.insist(ctx, func(asked context.Context, client kubernetes.Interface) error {
		whole, cancel := context.WithTimeoutCause(context.WithoutCancel(asked), askTime, &silenceError{askTime})
		defer cancel()
		_, err := client.CoreV1().Namespaces().Create(whole, made, metav1.CreateOptions{})
		if !apierrors.IsAlreadyExists(err) {
			return err
		}
		is, getErr := client.CoreV1().Namespaces().Get(whole, c.namespace, metav1.GetOptions{})
		if getErr == nil && is.Labels[runLabel] == made.Labels[runLabel] {
			return nil // the answer to an earlier attempt was lost
		}
		return errors.Join(getErr, err)
	})
}

// until repeats try until it succeeds. The error has the last failure.
func until(ctx context.Context, limit time.Duration, try func(context.Context) error) error {
	ctx, cancel := context.WithTimeoutCause(ctx, limit, fmt.Errorf("not within %v", limit))
	defer cancel()
	var last error
	for {
		err := try(ctx)
		switch {
		case err == nil:
			return nil
		case ctx.Err() == nil || last == nil:
			last = err
		}
		if ctx.Err() != nil {
			return fmt.Errorf("%w: %w", context.Cause(ctx), last)
		}
		pause(ctx, 100*time.Millisecond)
	}
}

// remove deletes the namespace and waits until it and its pods are gone.
func (c *checking) remove(ctx context.Context) error {
	made := false
	err := until(ctx, removeTime, func(ctx context.Context) error {
		return c.ask(ctx, func(ctx context.Context, client kubernetes.Interface) error {
			namespaces := client.CoreV1().Namespaces()
			if !made { // again and again: the leader may be changing
				err := namespaces.Delete(ctx, c.namespace, metav1.DeleteOptions{})
				if apierrors.IsNotFound(err) {
					return nil
				}
				if err != nil && !apierrors.IsConflict(err) {
					return err
				}
				made = true
			}
			_, err := namespaces.Get(ctx, c.namespace, metav1.GetOptions{})
			if apierrors.IsNotFound(err) {
				return nil
			}
			return errors.Join(err, errors.New("it is still there"))
		})
	})
	if err == nil && !made {
		return nil // the namespace never existed
	}
	if err != nil {
		return &LeftError{c.namespace, err}
	}
	c.add("what was made is removed", "namespace "+c.namespace)
	return nil
}

package scheduler_test

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	configv1 "k8s.io/kube-scheduler/config/v1"
	extenderv1 "k8s.io/kube-scheduler/extender/v1"

	"github.com/barque/barque/scheduler"
)

// extenderServer is an extender in this process; a verb without a function is answered with 404.
type extenderServer struct {
	*httptest.Server
	filter  func(extenderv1.ExtenderArgs) any
	score   func(extenderv1.ExtenderArgs) any
	bind    func(extenderv1.ExtenderBindingArgs) any
	preempt func(extenderv1.ExtenderPreemptionArgs) any

	mu    sync.Mutex
	calls map[string]int
}

// raw is an answer that is not encoded, with a status.
type raw struct {
	status int
	body   string
}

// hang never answers.
type hang struct{}

// lost breaks the connection in place of an answer.
type lost struct{}

func newExtender(t *testing.T) *extenderServer {
	e := &extenderServer{calls: map[string]int{}}
	over := make(chan struct{})
	e.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		verb := strings.TrimPrefix(r.URL.Path, "/x/")
		e.mu.Lock()
		e.calls[verb]++
		e.mu.Unlock()
		switch a := e.answer(t, verb, r).(type) {
		case hang:
			select {
			case <-r.Context().Done():
			case <-over:
			}
		case lost:
			panic(http.ErrAbortHandler)
		case raw:
			w.WriteHeader(a.status)
			_, _ = w.Write([]byte(a.body))
		default:
			if err := json.NewEncoder(w).Encode(a); err != nil {
				t.Error(err)
			}
		}
	}))
	t.Cleanup(func() {
		close(over)
		e.Close()
	})
	return e
}

func (e *extenderServer) answer(t *testing.T, verb string, r *http.Request) any {
	switch {
	case verb == "filter" && e.filter != nil:
		return e.filter(decoded[extenderv1.ExtenderArgs](t, r))
	case verb == "prioritize" && e.score != nil:
		return e.score(decoded[extenderv1.ExtenderArgs](t, r))
	case verb == "bind" && e.bind != nil:
		return e.bind(decoded[extenderv1.ExtenderBindingArgs](t, r))
	case verb == "preempt" && e.preempt != nil:
		return e.preempt(decoded[extenderv1.ExtenderPreemptionArgs](t, r))
	}
	return raw{http.StatusNotFound, ""}
}

func decoded[T any](t *testing.T, r *http.Request) (args T) {
	if err := json.NewDecoder(r.Body).Decode(&args); err != nil {
		t.Error(err)
	}
	return args
}

func (e *extenderServer) called(verb string) int {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.calls[verb]
}

func (e *extenderServer) config(change ...func(*configv1.Extender)) configv1.Extender {
	c := configv1.Extender{URLPrefix: e.URL + "/x/", NodeCacheCapable: true, Weight: 1}
	if e.filter != nil {
		c.FilterVerb = "filter"
	}
	if e.score != nil {
		c.PrioritizeVerb = "prioritize"
	}
	if e.bind != nil {
		c.BindVerb = "bind"
	}
	if e.preempt != nil {
		c.PreemptVerb = "preempt"
	}
	for _, f := range change {
		f(&c)
	}
	return c
}

func ignorable(c *configv1.Extender)  { c.Ignorable = true }
func wholeNodes(c *configv1.Extender) { c.NodeCacheCapable = false }
func briefly(c *configv1.Extender) {
	c.HTTPTimeout = metav1.Duration{Duration: 20 * time.Millisecond}
}

func take(names ...string) func(extenderv1.ExtenderArgs) any {
	return func(extenderv1.ExtenderArgs) any { return extenderv1.ExtenderFilterResult{NodeNames: &names} }
}

// tryExtenders schedules the pod on nodes a, b and c and returns the server.
func tryExtenders(t *testing.T, p *v1.Pod, extenders ...configv1.Extender) *apiServer {
	s := newAPIServer(t, node("a", "4", "8Gi"), node("b", "4", "8Gi"), node("c", "4", "8Gi"))
	s.seed(p)
	s.lead(s.start(scheduler.Config{Seed: 1, Extenders: extenders}))
	return s
}

func (s *apiServer) eventuallyOn(pod, node string) {
	s.tb.Helper()
	s.eventually(pod+" on "+node,
		func(pods map[string]*v1.Pod) bool { return pods["default/"+pod].Spec.NodeName == node })
}

func TestExtendersFilter(t *testing.T) {
	for name, c := range map[string]struct {
		filter func(extenderv1.ExtenderArgs) any
		change []func(*configv1.Extender)
		node   string // the node of the pod; "" if none fits
		says   string // the beginning of its event
	}{
		"by name": {filter: take("b"), node: "b"},
		"whole nodes": {filter: func(a extenderv1.ExtenderArgs) any {
			list := &v1.NodeList{
				Items: slices.DeleteFunc(a.Nodes.Items,
					func(n v1.Node) bool { return n.Labels[v1.LabelHostname] != "c" })}
			return extenderv1.ExtenderFilterResult{Nodes: list}
		}, change: []func(*configv1.Extender){wholeNodes}, node: "c"},
		"none, with reasons": {filter: func(extenderv1.ExtenderArgs) any {
			return extenderv1.ExtenderFilterResult{NodeNames: &[]string{},
				FailedNodes:                extenderv1.FailedNodesMap{"a": "busy", "b": "busy"},
				FailedAndUnresolvableNodes: extenderv1.FailedNodesMap{"b": "too old", "c": "too old"}}
		}, says: "0/3 nodes are available: 1 busy, 2 too old."},
		"none, without a word": {filter: take(),
			says: "0/3 nodes are available: 3 node(s) were left out by extender http://"},
		"an error": {
			filter: func(extenderv1.ExtenderArgs) any { return extenderv1.ExtenderFilterResult{Error: "no licence"} },
			says:   "extender http://"},
		"a node of its own": {filter: take("a", "z"), says: "extender http://"},
		"not JSON": {filter: func(extenderv1.ExtenderArgs) any { return raw{http.StatusOK, "yes"} },
			says: "extender http://"},
		"a failure": {
			filter: func(extenderv1.ExtenderArgs) any { return raw{http.StatusInternalServerError, "{}"} },
			says:   "extender http://"},
		"nothing for ever": {filter: func(extenderv1.ExtenderArgs) any { return hang{} },
			change: []func(*configv1.Extender){briefly}, says: "extender http://"},
		"nothing, and who asks": {filter: func(extenderv1.ExtenderArgs) any { return hang{} },
			change: []func(*configv1.Extender){briefly, ignorable}, node: "any"},
		"a lie, and who asks": {filter: take("z"), change: []func(*configv1.Extender){ignorable}, node: "any"},
	} {
		t.Run(name, func(t *testing.T) {
			e := newExtender(t)
			e.filter = c.filter
			s := tryExtenders(t, pod("p", "1", "1Gi"), e.config(c.change...))
			switch c.node {
			case "":
				s.eventuallyEvent("p", "FailedScheduling", c.says)
				if p := s.get("default", "p"); p.Spec.NodeName != "" {
					t.Errorf("the pod is on %s", p.Spec.NodeName)
				}
			case "any":
				s.eventually("bound", s.bound("p"))
			default:
				s.eventuallyOn("p", c.node)
			}
			if e.called("filter") == 0 {
				t.Error("the extender was not asked")
			}
		})
	}
}

// TestExtendersFilterInTurn: each extender gets the nodes that the ones before it left; ignorable
// extenders come last.
func TestExtendersFilterInTurn(t *testing.T) {
	first, second := newExtender(t), newExtender(t)
	first.filter = take("b", "c")
	second.filter = func(a extenderv1.ExtenderArgs) any {
		if !slices.Equal(*a.NodeNames, []string{"b", "c"}) {
			t.Errorf("the second is asked about %v", *a.NodeNames)
		}
		return extenderv1.ExtenderFilterResult{NodeNames: &[]string{"c"}}
	}
	tryExtenders(t, pod("p", "1", "1Gi"), second.config(ignorable), first.config()).eventuallyOn("p", "c")
}

// TestAnErrorLeavesTheNomination: a pod keeps its nominated node over a transient error.
func TestAnErrorLeavesTheNomination(t *testing.T) {
	e := newExtender(t)
	e.filter = func(extenderv1.ExtenderArgs) any { return extenderv1.ExtenderFilterResult{Error: "no licence"} }
	s := tryExtenders(t, pod("p", "1", "1Gi", func(p *v1.Pod) { p.Status.NominatedNodeName = "b" }), e.config())
	s.eventually("the error is in the status", func(pods map[string]*v1.Pod) bool {
		return slices.ContainsFunc(pods["default/p"].Status.Conditions,
			func(c v1.PodCondition) bool { return c.Reason == v1.PodReasonSchedulerError })
	})
	if got := s.get("default", "p").Status.NominatedNodeName; got != "b" {
		t.Errorf("the nominated node is %q", got)
	}
}

// TestARejectedPodComesBack: after an extender's rejection any event wakes the pod.
func TestARejectedPodComesBack(t *testing.T) {
	e := newExtender(t)
	e.filter = func(a extenderv1.ExtenderArgs) any {
		names := slices.DeleteFunc(*a.NodeNames, func(n string) bool { return n != "d" })
		return extenderv1.ExtenderFilterResult{NodeNames: &names}
	}
	s := tryExtenders(t, pod("p", "1", "1Gi"), e.config())
	s.eventuallyEvent("p", "FailedScheduling", "0/3 nodes")
	if _, err := s.client.CoreV1().Nodes().Create(t.Context(), node("d", "4", "8Gi"),
		metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	s.eventuallyOn("p", "d")
}

func TestExtendersScore(t *testing.T) {
	scores := func(list ...any) func(extenderv1.ExtenderArgs) any {
		return func(extenderv1.ExtenderArgs) any {
			out := extenderv1.HostPriorityList{}
			for i := 0; i < len(list); i += 2 {
				out = append(out, extenderv1.HostPriority{Host: list[i].(string), Score: int64(list[i+1].(int))})
			}
			return out
		}
	}
	heavy := func(c *configv1.Extender) { c.Weight = 3 }
	for name, c := range map[string]struct {
		one, two func(extenderv1.ExtenderArgs) any
		node     string
		change   []func(*configv1.Extender) // of the first
	}{
		"the best":      {scores("a", 1, "b", 10, "c", 0), scores(), "b", nil},
		"by weight":     {scores("a", 0, "b", 10, "c", 0), scores("c", 9), "c", nil},
		"unknown nodes": {scores("z", 10, "c", 10), scores(), "c", nil},
		"far too much":  {scores("a", 1<<62, "b", 5), scores("a", 1<<62), "a", nil},
		"one hangs": {func(extenderv1.ExtenderArgs) any { return hang{} }, scores("a", 10), "a",
			[]func(*configv1.Extender){briefly}},
		"one answers nonsense": {scores("b", 10),
			func(extenderv1.ExtenderArgs) any { return raw{http.StatusOK, `[{"Host":"a","Score":10},`} }, "b", nil},
	} {
		t.Run(name, func(t *testing.T) {
			one, two := newExtender(t), newExtender(t)
			one.score, two.score = c.one, c.two
			tryExtenders(t, pod("p", "1", "1Gi"), one.config(c.change...), two.config(heavy)).eventuallyOn("p", c.node)
		})
	}
}

func TestExtendersBind(t *testing.T) {
	for name, c := range map[string]struct {
		bind   func(s *apiServer, call int, a extenderv1.ExtenderBindingArgs) any
		change []func(*configv1.Extender)
		calls  int // at least
		ours   int // bindings that the scheduler itself asked the API server for
	}{
		"it does": {bind: func(s *apiServer, _ int, a extenderv1.ExtenderBindingArgs) any { return bindAs(s, a) },
			calls: 1},
		"it lies the first time": {bind: func(s *apiServer, call int, a extenderv1.ExtenderBindingArgs) any {
			if call == 1 {
				return extenderv1.ExtenderBindingResult{}
			}
			return bindAs(s, a)
		}, calls: 2},
		"it fails the first time": {bind: func(s *apiServer, call int, a extenderv1.ExtenderBindingArgs) any {
			if call == 1 {
				return extenderv1.ExtenderBindingResult{Error: "not now"}
			}
			return bindAs(s, a)
		}, calls: 2},
		"it does, and its answer is lost": {bind: func(s *apiServer, _ int, a extenderv1.ExtenderBindingArgs) any {
			bindAs(s, a)
			return lost{}
		}, calls: 1},
		"it fails and is ignorable": {
			bind:   func(*apiServer, int, extenderv1.ExtenderBindingArgs) any { return raw{http.StatusTeapot, ""} },
			change: []func(*configv1.Extender){ignorable}, calls: 1, ours: 1},
	} {
		t.Run(name, func(t *testing.T) {
			e := newExtender(t)
			s := newAPIServer(t, node("a", "4", "8Gi"))
			e.bind = func(a extenderv1.ExtenderBindingArgs) any { return c.bind(s, e.called("bind"), a) }
			s.seed(pod("p", "1", "1Gi"))
			s.lead(s.start(scheduler.Config{Seed: 1, Extenders: []configv1.Extender{e.config(c.change...)}}))
			s.eventuallyEvent("p", "Scheduled", "Successfully assigned default/p to a")
			s.mu.Lock()
			defer s.mu.Unlock()
			if s.binds != c.ours || s.pods["default/p"].Spec.NodeName != "a" {
				t.Errorf("%d bindings by the scheduler, want %d; the pod is on %q", s.binds, c.ours,
					s.pods["default/p"].Spec.NodeName)
			}
			if got := e.called("bind"); got < c.calls {
				t.Errorf("the extender was asked %d times, want %d", got, c.calls)
			}
		})
	}
}

// bindAs writes a binding with a separate client, as an extender does.
func bindAs(s *apiServer, a extenderv1.ExtenderBindingArgs) any {
	p := s.get(a.PodNamespace, a.PodName)
	if p == nil || p.UID != a.PodUID || p.Spec.NodeName != "" {
		return extenderv1.ExtenderBindingResult{Error: "it is gone"}
	}
	p.Spec.NodeName = a.Node
	s.put(p)
	return extenderv1.ExtenderBindingResult{}
}

func TestExtendersPreempt(t *testing.T) {
	meta := func(node string, uids ...types.UID) any {
		v := &extenderv1.MetaVictims{}
		for _, uid := range uids {
			v.Pods = append(v.Pods, &extenderv1.MetaPod{UID: string(uid)})
		}
		return extenderv1.ExtenderPreemptionResult{NodeNameToMetaVictims: map[string]*extenderv1.MetaVictims{node: v}}
	}
	placed := func(name, node string, p int32) *v1.Pod {
		return pod(name, "4", "1Gi", priority(p), func(p *v1.Pod) { p.Spec.NodeName = node })
	}
	for name, c := range map[string]struct {
		preempt func(extenderv1.ExtenderPreemptionArgs) any
		change  []func(*configv1.Extender)
		node    string // that is freed; "" when none is
	}{
		"as it likes": {preempt: func(a extenderv1.ExtenderPreemptionArgs) any {
			if len(a.NodeNameToMetaVictims["a"].Pods) != 1 || a.NodeNameToVictims != nil ||
				a.NodeNameToMetaVictims["c"] != nil {
				t.Errorf("it is asked about %+v, %+v", a.NodeNameToMetaVictims, a.NodeNameToVictims)
			}
			return meta("b", "uid-on-b")
		}, node: "b"},
		"with whole pods": {preempt: func(a extenderv1.ExtenderPreemptionArgs) any {
			if a.NodeNameToVictims["b"].Pods[0].Name != "on-b" {
				t.Errorf("it is asked about %+v", a.NodeNameToVictims["b"])
			}
			return meta("b", "uid-on-b")
		}, change: []func(*configv1.Extender){wholeNodes}, node: "b"},
		"no node": {
			preempt: func(extenderv1.ExtenderPreemptionArgs) any { return extenderv1.ExtenderPreemptionResult{} }},
		"a node of its own": {
			preempt: func(extenderv1.ExtenderPreemptionArgs) any { return meta("z", "uid-on-a") }},
		"an important pod": {
			preempt: func(extenderv1.ExtenderPreemptionArgs) any { return meta("a", "uid-on-a", "uid-high-a") }},
		"a pod of another node": {
			preempt: func(extenderv1.ExtenderPreemptionArgs) any { return meta("a", "uid-on-b") }},
		"nobody on a node": {preempt: func(extenderv1.ExtenderPreemptionArgs) any { return meta("a") }},
		"a failure": {
			preempt: func(extenderv1.ExtenderPreemptionArgs) any { return raw{http.StatusBadGateway, ""} }},
		"a failure, and who asks": {preempt: func(extenderv1.ExtenderPreemptionArgs) any { return hang{} },
			change: []func(*configv1.Extender){ignorable, briefly}, node: "a"},
	} {
		t.Run(name, func(t *testing.T) {
			e := newExtender(t)
			e.preempt = c.preempt
			s := newAPIServer(t, node("a", "4", "8Gi"), node("b", "4", "8Gi"), node("c", "4", "8Gi"))
			s.seed(placed("on-a", "a", 1), placed("on-b", "b", 2), placed("on-c", "c", 100),
				pod("p", "4", "1Gi", priority(50)),
				pod("high-a", "0", "0", priority(100), func(p *v1.Pod) { p.Spec.NodeName = "a" }))
			s.lead(s.start(scheduler.Config{Seed: 1, Extenders: []configv1.Extender{e.config(c.change...)}}))
			if c.node != "" {
				s.eventuallyOn("p", c.node)
			} else {
				s.eventuallyEvent("p", "FailedScheduling", "0/3 nodes are available")
			}
			for _, n := range []string{"a", "b", "c"} {
				if gone := s.get("default", "on-"+n) == nil; gone != (n == c.node) {
					t.Errorf("the pod on %s is gone: %t", n, gone)
				}
			}
			if s.get("default", "high-a") == nil {
				t.Error("a more important pod is gone")
			}
		})
	}
}

// TestManagedResources: an extender is called only for pods that use its resources.
func TestManagedResources(t *testing.T) {
	e := newExtender(t)
	e.filter = take("b")
	mine := func(c *configv1.Extender) {
		c.ManagedResources = []configv1.ExtenderManagedResource{{Name: "example.com/gpu"}}
	}
	device := func(p *v1.Pod) {
		p.Spec.InitContainers = []v1.Container{
			{Name: "i",
				Resources: v1.ResourceRequirements{
					Limits: v1.ResourceList{"example.com/gpu": resource.MustParse("1")}}}}
	}
	s := tryExtenders(t, pod("plain", "1", "1Gi"), e.config(mine))
	s.eventually("bound", s.bound("plain"))
	if n := e.called("filter"); n != 0 {
		t.Errorf("it was asked %d times about a pod that is not its own", n)
	}
	s.put(pod("special", "1", "1Gi", device))
	s.eventuallyOn("special", "b")
	if n := e.called("filter"); n == 0 {
		t.Error("it was not asked about its pod")
	}
}

// TestALeaderStopsDespiteAnExtender: the end of the term ends a hanging call long before its
// time-out.
func TestALeaderStopsDespiteAnExtender(t *testing.T) {
	e := newExtender(t)
	asked := make(chan struct{}, 1)
	e.filter = func(extenderv1.ExtenderArgs) any {
		select {
		case asked <- struct{}{}:
		default:
		}
		return hang{}
	}
	s := newAPIServer(t, node("a", "4", "8Gi"))
	s.seed(pod("p", "1", "1Gi"))
	day := func(c *configv1.Extender) { c.HTTPTimeout = metav1.Duration{Duration: 24 * time.Hour} }
	depose := s.lead(s.start(scheduler.Config{Extenders: []configv1.Extender{e.config(day)}}))
	<-asked
	depose()
}

// A node that an extender refuses, and that has no victims, is not nominated: another node is
// freed.
func TestExtendersRefusalIsNotPreemptedFor(t *testing.T) {
	e := newExtender(t)
	e.filter = func(a extenderv1.ExtenderArgs) any {
		names := slices.DeleteFunc(slices.Clone(*a.NodeNames), func(n string) bool { return n == "x" })
		return extenderv1.ExtenderFilterResult{NodeNames: &names,
			FailedNodes: extenderv1.FailedNodesMap{"x": "refused"}}
	}
	s := newAPIServer(t, node("x", "8", "8Gi"), node("a", "4", "8Gi"))
	on := func(name, node string) *v1.Pod {
		return pod(name, "4", "1Gi", priority(1), func(p *v1.Pod) { p.Spec.NodeName = node })
	}
	s.seed(on("on-x", "x"), on("on-a", "a"), pod("p", "4", "1Gi", priority(50)))
	s.lead(s.start(scheduler.Config{Seed: 1, Extenders: []configv1.Extender{e.config()}}))
	s.eventuallyOn("p", "a")
	if s.get("default", "on-x") == nil || s.get("default", "on-a") != nil {
		t.Error("the wrong pod is gone")
	}
}

package node

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	apiruntime "k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/fake"
	k8stesting "k8s.io/client-go/testing"

	crifake "github.com/barque/barque/kubelet/cri/fake"
)

type fixture struct {
	client   *fake.Clientset
	runtime  *crifake.Runtime
	reporter *Reporter
	down     atomic.Bool // the runtime is away
	ends     atomic.Bool // the machine goes down
	moves    []string    // "before > now"; only while nothing else runs
	log      bytes.Buffer
}

// inBubble runs a reporter in virtual time. It finds these objects.
func inBubble(t *testing.T, test func(f *fixture), found ...apiruntime.Object) {
	machine := Machine{CPUs: 4, MemoryBytes: 8 << 30,
		Info: v1.NodeSystemInfo{Architecture: "amd64", OperatingSystem: "linux"}}
	dir := t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		f := &fixture{client: fake.NewClientset(found...), runtime: crifake.New("a:1")}
		f.runtime.Fail(func(call, _ string) error {
			if call == "Status" && f.down.Load() {
				return errors.New("no socket")
			}
			return nil
		})
		var err error
		f.reporter, err = New(
			Config{Name: "n1", Hostname: "n1", IPs: []string{"192.0.2.1"},
				Labels: map[string]string{"node-role.kubernetes.io/control-plane": ""},
				Taints: []v1.Taint{{Key: "k", Effect: v1.TaintEffectNoSchedule}}, Version: "v1.37", Port: 10250,
				MaxPods: 110, RootDir: dir, Machine: machine,
				Reserved: v1.ResourceList{v1.ResourceCPU: resource.MustParse("500m")},
				Client:   f.client, Runtime: f.runtime, Images: f.runtime, Down: f.ends.Load,
				Moved: func(before, now []string) {
					f.moves = append(f.moves, strings.Join(before, ",")+" > "+strings.Join(now, ","))
				},
				Logger: slog.New(slog.NewTextHandler(&f.log, nil))})
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(context.Background())
		ended := make(chan error, 1)
		go func() { ended <- f.reporter.Run(ctx) }()
		synctest.Wait()
		test(f)
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
}

func (f *fixture) get(t *testing.T) *v1.Node {
	t.Helper()
	synctest.Wait()
	n, err := f.client.CoreV1().Nodes().Get(context.Background(), "n1", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return n
}

func condition(n *v1.Node, kind v1.NodeConditionType) v1.NodeCondition {
	for _, c := range n.Status.Conditions {
		if c.Type == kind {
			return c
		}
	}
	return v1.NodeCondition{}
}

func TestRegistersAndThenKeepsQuiet(t *testing.T) {
	inBubble(t, func(f *fixture) {
		n := f.get(t)
		if c := condition(n, v1.NodeReady); c.Status != v1.ConditionTrue || c.Reason != "KubeletReady" {
			t.Errorf("ready: %+v", c)
		}
		if n.Labels[v1.LabelHostname] != "n1" || n.Labels[v1.LabelArchStable] != "amd64" || len(n.Spec.Taints) != 1 {
			t.Errorf("labels %v, taints %v", n.Labels, n.Spec.Taints)
		}
		if _, ok := n.Labels["node-role.kubernetes.io/control-plane"]; !ok {
			t.Errorf("labels %v", n.Labels)
		}
		if cpu := n.Status.Allocatable[v1.ResourceCPU]; cpu.MilliValue() != 3500 {
			t.Errorf("allocatable CPU %s", cpu.String())
		}
		if n.Status.DaemonEndpoints.KubeletEndpoint.Port != 10250 || n.Status.Addresses[0].Address != "192.0.2.1" ||
			len(n.Status.Images) != 1 {
			t.Errorf("status %+v", n.Status)
		}
		f.client.ClearActions()
		f.reporter.Observe(n)
		time.Sleep(24 * time.Hour) // virtual
		for _, a := range f.client.Actions() {
			if a.GetVerb() != "get" {
				t.Errorf("an idle node did %s %s", a.GetVerb(), a.GetResource().Resource)
			}
		}
	})
}

// TestRefusedNode: a node whose Node is refused tries less and less often, and does not fill its
// log. One that cannot reach a server tries each second. Both are registered soon after that ends.
func TestRefusedNode(t *testing.T) {
	for name, c := range map[string]struct {
		why      error
		attempts int // in an hour
	}{
		"refused":     {apierrors.NewForbidden(v1.Resource("nodes"), "n1", errors.New("a policy denies it")), 133},
		"unreachable": {errors.New("connection refused"), 3600},
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(f *fixture) {
				n := f.get(t)
				var fails atomic.Bool
				fails.Store(true)
				for _, verb := range []string{"create", "patch"} {
					f.client.PrependReactor(verb, "nodes",
						func(k8stesting.Action) (bool, apiruntime.Object, error) { return fails.Load(), nil, c.why })
				}
				if err := f.client.Tracker().Delete(v1.SchemeGroupVersion.WithResource("nodes"), "", "n1"); err != nil {
					t.Fatal(err)
				}
				f.reporter.Observe(nil)
				synctest.Wait()
				f.client.ClearActions()
				time.Sleep(time.Hour) // virtual
				synctest.Wait()
				attempts := 0
				for _, a := range f.client.Actions() {
					if a.GetVerb() == "create" {
						attempts++
					}
				}
				if attempts < c.attempts-5 || attempts > c.attempts+5 {
					t.Errorf("%d attempts in an hour, want about %d", attempts, c.attempts)
				}
				if lines := strings.Count(f.log.String(), "cannot report this node"); lines == 0 ||
					lines > c.attempts/25 {
					t.Errorf("%d lines in the log", lines)
				}
				fails.Store(false)
				time.Sleep(refusedAtMost)
				if again := f.get(t); again.Name != n.Name {
					t.Errorf("registered %s", again.Name)
				}
			})
		})
	}
}

// TestTellsOfOtherAddresses: a node reports at its start that its internal addresses have changed.
// A later change by another writer is no move.
func TestTellsOfOtherAddresses(t *testing.T) {
	at := func(ip string) *v1.Node {
		return &v1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n1"},
			Status: v1.NodeStatus{
				Addresses: []v1.NodeAddress{{Type: v1.NodeInternalIP, Address: ip},
					{Type: v1.NodeHostName, Address: "n1"}}}}
	}
	for _, c := range []struct {
		found []apiruntime.Object
		want  []string
	}{
		{nil, nil},
		{[]apiruntime.Object{at("192.0.2.1")}, nil},
		{[]apiruntime.Object{at("192.0.2.9")}, []string{"192.0.2.9 > 192.0.2.1"}},
	} {
		inBubble(t, func(f *fixture) {
			n := f.get(t)
			n.Status.Addresses = at("192.0.2.7").Status.Addresses
			n, err := f.client.CoreV1().Nodes().UpdateStatus(context.Background(), n, metav1.UpdateOptions{})
			if err != nil {
				t.Fatal(err)
			}
			f.reporter.Observe(n)
			time.Sleep(time.Hour) // virtual
			if got := f.get(t).Status.Addresses; len(got) == 0 || got[0].Address != "192.0.2.1" {
				t.Errorf("the addresses %+v", got)
			}
			if !slices.Equal(f.moves, c.want) {
				t.Errorf("told %q, want %q", f.moves, c.want)
			}
		}, c.found...)
	}
}

func TestTellsWhenTheRuntimeIsAway(t *testing.T) {
	inBubble(t, func(f *fixture) {
		f.down.Store(true)
		time.Sleep(11 * time.Second)
		n := f.get(t)
		if c := condition(n, v1.NodeReady); c.Status != v1.ConditionFalse || c.Reason != "KubeletNotReady" {
			t.Errorf("ready: %+v", c)
		}
		f.down.Store(false)
		time.Sleep(2 * time.Second)
		if c := condition(f.get(t), v1.NodeReady); c.Status != v1.ConditionTrue {
			t.Errorf("ready: %+v", c)
		}
	})
}

func TestTellsWhenTheMachineGoesDown(t *testing.T) {
	inBubble(t, func(f *fixture) {
		expect := func(want string) {
			t.Helper()
			f.reporter.Look()
			c := condition(f.get(t), v1.NodeReady)
			if got := string(c.Status) + " " + c.Reason + ": " + c.Message; got != want {
				t.Errorf("ready: %s, want %s", got, want)
			}
		}
		f.ends.Store(true)
		expect("False KubeletNotReady: node is shutting down")
		f.down.Store(true)
		expect("False KubeletNotReady: [container runtime status check failed: no socket, node is shutting down]")
		f.down.Store(false)
		f.ends.Store(false)
		expect("True KubeletReady: kubelet is posting ready status")
	})
}

func TestPutsRightWhatOthersChanged(t *testing.T) {
	inBubble(t, func(f *fixture) {
		n := f.get(t).DeepCopy()
		for i := range n.Status.Conditions {
			n.Status.Conditions[i].Status, n.Status.Conditions[i].Reason = v1.ConditionUnknown, "NodeStatusUnknown"
		}
		n.Status.Conditions = append(n.Status.Conditions, v1.NodeCondition{Type: "Other", Status: v1.ConditionTrue})
		n, err := f.client.CoreV1().Nodes().UpdateStatus(context.Background(), n, metav1.UpdateOptions{})
		if err != nil {
			t.Fatal(err)
		}
		f.reporter.Observe(n)
		if c := condition(f.get(t), v1.NodeReady); c.Status != v1.ConditionUnknown {
			t.Error("it was in a hurry")
		}
		time.Sleep(10 * time.Second)
		after := f.get(t)
		if c := condition(after, v1.NodeReady); c.Status != v1.ConditionTrue {
			t.Errorf("ready: %+v", c)
		}
		if c := condition(after, "Other"); c.Status != v1.ConditionTrue {
			t.Error("somebody else's condition is gone")
		}
	})
}

func TestRepeatsItselfWhileCalledUnreachable(t *testing.T) {
	inBubble(t, func(f *fixture) {
		f.client.ClearActions()
		writes := func() (n int) {
			for _, a := range f.client.Actions() {
				if a.GetSubresource() == "status" {
					n++
				}
			}
			f.client.ClearActions()
			return n
		}
		taint := func(taints ...v1.Taint) {
			n := f.get(t).DeepCopy()
			n.Spec.Taints = taints
			n, err := f.client.CoreV1().Nodes().Update(context.Background(), n, metav1.UpdateOptions{})
			if err != nil {
				t.Fatal(err)
			}
			f.reporter.Observe(n)
			synctest.Wait()
		}
		time.Sleep(time.Hour)
		before := condition(f.get(t), v1.NodeReady)
		taint(v1.Taint{Key: v1.TaintNodeUnreachable, Effect: v1.TaintEffectNoSchedule})
		if n := writes(); n != 1 {
			t.Errorf("%d writes at once, want 1", n)
		}
		time.Sleep(65 * time.Second)
		if n := writes(); n != 6 {
			t.Errorf("%d writes in 65 s, want one in ten seconds", n)
		}
		after := condition(f.get(t), v1.NodeReady)
		if after.LastHeartbeatTime.Sub(before.LastHeartbeatTime.Time) < 59*time.Minute ||
			after.LastTransitionTime != before.LastTransitionTime {
			t.Errorf("condition %+v, and before %+v", after, before)
		}
		taint()
		time.Sleep(time.Hour)
		if n := writes(); n > 0 {
			t.Errorf("%d writes after the taint was taken off", n)
		}
	})
}

func TestRegistersAgainWhenDeleted(t *testing.T) {
	inBubble(t, func(f *fixture) {
		if err := f.client.CoreV1().Nodes().Delete(context.Background(), "n1", metav1.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
		f.reporter.Forget()
		time.Sleep(10 * time.Second)
		f.get(t)
	})
}

// TestKeepsOthersResources: resources of other writers in the node's status stay, and all of them
// are allocatable.
func TestKeepsOthersResources(t *testing.T) {
	inBubble(t, func(f *fixture) {
		const dongle, ghost, huge = v1.ResourceName("example.com/dongle"), v1.ResourceName("example.com/ghost"),
			v1.ResourceName("hugepages-2Mi")
		change := func(change func(*v1.NodeStatus)) *v1.Node {
			n := f.get(t).DeepCopy()
			change(&n.Status)
			n, err := f.client.CoreV1().Nodes().UpdateStatus(context.Background(), n, metav1.UpdateOptions{})
			if err != nil {
				t.Fatal(err)
			}
			f.reporter.Observe(n)
			time.Sleep(time.Minute)
			n = f.get(t)
			f.reporter.Observe(n)
			return n
		}
		has := func(list v1.ResourceList, name v1.ResourceName) string {
			q, ok := list[name]
			if !ok {
				return "none"
			}
			return q.String()
		}
		n := change(func(s *v1.NodeStatus) {
			s.Capacity[dongle], s.Capacity[huge] = resource.MustParse("5"), resource.MustParse("1Gi")
			s.Allocatable[ghost] = resource.MustParse("2")
			s.Capacity[v1.ResourceCPU] = resource.MustParse("64")
		})
		for _, c := range []struct {
			what, got, want string
		}{
			{"capacity", has(n.Status.Capacity, dongle), "5"},
			{"allocatable of what has a capacity", has(n.Status.Allocatable, dongle), "5"},
			{"huge pages", has(n.Status.Capacity, huge), "1Gi"},
			{"allocatable without a capacity", has(n.Status.Allocatable, ghost), "none"},
			{"its own CPUs", has(n.Status.Capacity, v1.ResourceCPU), "4"},
			{"and what of them is for pods", has(n.Status.Allocatable, v1.ResourceCPU), "3500m"},
		} {
			if c.got != c.want {
				t.Errorf("%s: %s, want %s", c.what, c.got, c.want)
			}
		}

		// It stays when the node changes its own status.
		f.down.Store(true)
		time.Sleep(time.Minute)
		if n = f.get(t); condition(n, v1.NodeReady).Status != v1.ConditionFalse ||
			has(n.Status.Capacity, dongle) != "5" || has(n.Status.Allocatable, dongle) != "5" {
			t.Errorf("after a change of its own: %+v", n.Status)
		}
		f.reporter.Observe(n)
		f.down.Store(false)
		time.Sleep(time.Minute)
		f.reporter.Observe(f.get(t))

		if n = change(
			func(s *v1.NodeStatus) { delete(s.Capacity, dongle) }); has(n.Status.Capacity, dongle) != "none" ||
			has(n.Status.Allocatable, dongle) != "none" {
			t.Errorf("after others took it away: %v, %v", n.Status.Capacity, n.Status.Allocatable)
		}
		f.client.ClearActions()
		time.Sleep(time.Hour)
		for _, a := range f.client.Actions() {
			if a.GetVerb() != "get" {
				t.Errorf("an idle node did %s %s", a.GetVerb(), a.GetResource().Resource)
			}
		}
	})
}

func TestNodeDeclaresItsFeatures(t *testing.T) {
	inBubble(t, func(f *fixture) {
		node, err := f.client.CoreV1().Nodes().Get(t.Context(), "n1", metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		want := []string{"InPlacePodLevelResourcesVerticalScaling", "InPlacePodVerticalScalingInitContainers",
			"RestartAllContainersOnContainerExits"}
		if got := node.Status.DeclaredFeatures; !slices.Equal(got, want) {
			t.Errorf("the node declares %q, want %q", got, want)
		}
	})
}

// In a cloud a node registers with the taint and the annotation that its controller looks for. The
// addresses are its own until the controller gives it others, and then stay as they are given.
func TestNodeOfACloud(t *testing.T) {
	r, err := New(
		Config{Name: "n1", Hostname: "n1", IPs: []string{"192.0.2.1", "2001:db8::1"}, ExternalCloud: true,
			ProviderID: "cloud://1",
			RootDir:    t.TempDir(), Version: "v1.37",
			Taints: []v1.Taint{{Key: "k", Effect: v1.TaintEffectNoSchedule}}, Client: fake.NewClientset(),
			Runtime: crifake.New(), Images: crifake.New(), Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	wanted, err := r.wanted(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	n, err := r.register(t.Context(), wanted)
	if err != nil {
		t.Fatal(err)
	}
	if taints := n.Spec.Taints; len(taints) != 2 || taints[1].Key != "node.cloudprovider.kubernetes.io/uninitialized" ||
		taints[1].Value != "true" || taints[1].Effect != v1.TaintEffectNoSchedule {
		t.Errorf("taints %v", taints)
	}
	if n.Spec.ProviderID != "cloud://1" {
		t.Errorf("the provider ID is %q", n.Spec.ProviderID)
	}
	if got := n.Annotations["alpha.kubernetes.io/provided-node-ip"]; got != "192.0.2.1,2001:db8::1" {
		t.Errorf("the annotation is %q", got)
	}
	if a := n.Status.Addresses; len(a) != 3 || a[0].Address != "192.0.2.1" {
		t.Errorf("addresses %v", a)
	}
	given := n.DeepCopy()
	given.Status.Addresses = []v1.NodeAddress{{Type: v1.NodeInternalIP, Address: "192.0.2.1"},
		{Type: v1.NodeExternalIP, Address: "203.0.113.1"}}
	if after := r.withOthers(&wanted.Status, given); !slices.Equal(after.Addresses, given.Status.Addresses) {
		t.Errorf("addresses %v", after.Addresses)
	}
	if patch := metaPatch(&v1.Node{}, wanted); patch["metadata"].(map[string]any)["annotations"] == nil {
		t.Errorf("a Node without the annotation does not get it: %v", patch)
	}
}

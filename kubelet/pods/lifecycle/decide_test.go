package lifecycle

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"reflect"
	"slices"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/barque/barque/kubelet/restarts"
)

var epoch = time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)

func podWith(policy v1.RestartPolicy, containers ...string) *v1.Pod {
	p := &v1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "p", Namespace: "ns", UID: "u"}}
	p.Spec.RestartPolicy = policy
	for _, name := range containers {
		p.Spec.Containers = append(p.Spec.Containers, v1.Container{Name: name, Image: "img"})
	}
	return p
}

func withInit(p *v1.Pod, name string, sidecar bool) *v1.Pod {
	c := v1.Container{Name: name, Image: "img"}
	if sidecar {
		always := v1.ContainerRestartPolicyAlways
		c.RestartPolicy = &always
	}
	p.Spec.InitContainers = append(p.Spec.InitContainers, c)
	return p
}

func running(name string) Container {
	return Container{ID: name + "-id", Name: name, SandboxID: "box", State: Running, StartedAt: epoch, SpecImage: "img"}
}

func exited(name string, code int32) Container {
	c := running(name)
	c.State, c.ExitCode, c.FinishedAt = Exited, code, epoch
	return c
}

// pulled are containers whose images are there.
func pulled(names ...string) map[string]Named {
	m := map[string]Named{}
	for _, n := range names {
		m[n] = Named{Image: "ref"}
	}
	return m
}

func box(ready bool) []Sandbox {
	return []Sandbox{{ID: "box", Ready: ready, IPs: []string{"10.0.0.2"}}}
}

// brief writes a plan so that tables can be read.
func brief(p Plan) []string {
	var out []string
	for _, k := range p.Kill {
		out = append(out, "kill "+k.Name)
	}
	for _, id := range p.StopSandboxes {
		out = append(out, "stop "+id)
	}
	if p.CreateSandbox {
		out = append(out, fmt.Sprintf("sandbox %d", p.SandboxAttempt))
	}
	for _, c := range p.Pull {
		out = append(out, "pull "+c.Name)
	}
	for _, s := range p.Start {
		out = append(out, fmt.Sprintf("start %s %d", s.Container.Name, s.Attempt))
	}
	for _, id := range p.RemoveContainers {
		out = append(out, "remove "+id)
	}
	for _, name := range []string{"i", "s", "a", "b"} {
		if w, ok := p.Waiting[name]; ok && w.Reason != reasonCreating && w.Reason != reasonInitializing {
			out = append(out, name+" "+w.Reason)
		}
	}
	return out
}

func TestDecide(t *testing.T) {
	images := pulled("a", "b", "i", "s")
	restarted := func(pause, ago time.Duration) map[string]Named {
		return map[string]Named{"a": {Image: "ref", Restarts: Restarts{Backoff{pause}, epoch.Add(-ago)}}}
	}
	pullFailed := func(ago time.Duration, pulling bool) map[string]Named {
		since := epoch.Add(-ago)
		return map[string]Named{"a": {Pulling: pulling,
			Trouble: &Trouble{Reason: ReasonErrImagePull, Since: since, RetryAt: since.Add(9 * time.Second)}}}
	}
	started := func(names ...string) map[string]Instance {
		m := map[string]Instance{}
		for _, n := range names {
			m[n+"-id"] = Instance{Health: Health{Started: true, Ready: true}}
		}
		return m
	}
	old := running("a")
	old.SandboxID = "older"
	lostPod := podWith(v1.RestartPolicyNever, "a")
	lostPod.Status.ContainerStatuses = []v1.ContainerStatus{{Name: "a", ContainerID: "containerd://x",
		State: v1.ContainerState{Running: &v1.ContainerStateRunning{}}}}
	changed := running("a")
	changed.SpecImage = "other"

	for _, c := range []struct {
		name  string
		facts Facts
		want  []string
	}{
		{"a new pod gets a sandbox", Facts{Pod: podWith(v1.RestartPolicyAlways, "a")}, []string{"sandbox 0"}},
		{"then the images of all its containers", Facts{Pod: podWith(v1.RestartPolicyAlways, "a", "b"),
			Observed: Observed{Sandboxes: box(true)}}, []string{"pull a", "pull b"}},
		{"no image is pulled twice", Facts{Pod: podWith(v1.RestartPolicyAlways, "a"),
			Observed: Observed{Sandboxes: box(true)}, Named: map[string]Named{"a": {Pulling: true}}}, nil},
		{"then they start", Facts{Pod: podWith(v1.RestartPolicyAlways, "a", "b"), Named: images,
			Observed: Observed{Sandboxes: box(true)}}, []string{"start a 0", "start b 0"}},
		{"nothing to do", Facts{Pod: podWith(v1.RestartPolicyAlways, "a"), Named: images, Instances: started("a"),
			Observed: Observed{Sandboxes: box(true), Containers: []Container{running("a")}}}, nil},
		{"the first end is forgiven at once", Facts{Pod: podWith(v1.RestartPolicyAlways, "a"), Named: images,
			Observed: Observed{Sandboxes: box(true), Containers: []Container{exited("a", 1)}}}, []string{"start a 1"}},
		{"the second is not", Facts{Pod: podWith(v1.RestartPolicyAlways, "a"), Named: restarted(10*time.Second, 0),
			Observed: Observed{Sandboxes: box(true), Containers: []Container{exited("a", 0)}}},
			[]string{"a CrashLoopBackOff"}},
		{"what is started again is shown to be held back until it runs",
			Facts{Pod: podWith(v1.RestartPolicyAlways, "a"), Named: restarted(10*time.Second, 20*time.Second),
				Observed: Observed{Sandboxes: box(true), Containers: []Container{func() Container {
					c := exited("a", 0)
					c.FinishedAt = epoch.Add(-10 * time.Second)
					return c
				}()}}}, []string{"start a 1", "a CrashLoopBackOff"}},
		{"OnFailure leaves success alone", Facts{Pod: podWith(v1.RestartPolicyOnFailure, "a", "b"), Named: images,
			Observed: Observed{Sandboxes: box(true), Containers: []Container{exited("a", 0), exited("b", 2)}}},
			[]string{"start b 1"}},
		{"Never starts once", Facts{Pod: podWith(v1.RestartPolicyNever, "a"), Named: images,
			Observed: Observed{Sandboxes: box(true), Containers: []Container{exited("a", 2)}}}, nil},
		{"Never, and the runtime forgot", Facts{Pod: lostPod, Named: images}, nil},
		{"a dead sandbox is replaced when nothing runs in it",
			Facts{Pod: podWith(v1.RestartPolicyAlways, "a"), Named: images,
				Observed: Observed{Sandboxes: box(false), Containers: []Container{exited("a", 0)}}},
			[]string{"stop box", "sandbox 1"}},
		{"what runs in a dead sandbox is killed first", Facts{Pod: podWith(v1.RestartPolicyAlways, "a"), Named: images,
			Observed: Observed{Sandboxes: box(false), Containers: []Container{running("a")}}}, []string{"kill a"}},
		{"a dead sandbox of a done pod stays", Facts{Pod: podWith(v1.RestartPolicyNever, "a"),
			Observed: Observed{Sandboxes: box(false), Containers: []Container{exited("a", 0)}}}, nil},
		{"what runs in a former sandbox is killed", Facts{Pod: podWith(v1.RestartPolicyAlways, "a"), Named: images,
			Observed: Observed{Sandboxes: box(true), Containers: []Container{old}}}, []string{"kill a"}},
		{"init containers run alone and first",
			Facts{Pod: withInit(podWith(v1.RestartPolicyAlways, "a"), "i", false), Named: images,
				Observed: Observed{Sandboxes: box(true)}}, []string{"start i 0"}},
		{"one that runs holds back the rest",
			Facts{Pod: withInit(podWith(v1.RestartPolicyAlways, "a"), "i", false), Named: images,
				Observed: Observed{Sandboxes: box(true), Containers: []Container{running("i")}}}, nil},
		{"one that succeeded lets them run",
			Facts{Pod: withInit(podWith(v1.RestartPolicyAlways, "a"), "i", false), Named: images,
				Observed: Observed{Sandboxes: box(true), Containers: []Container{exited("i", 0)}}},
			[]string{"start a 0"}},
		{"one that failed is tried again",
			Facts{Pod: withInit(podWith(v1.RestartPolicyAlways, "a"), "i", false), Named: images,
				Observed: Observed{Sandboxes: box(true), Containers: []Container{exited("i", 1)}}},
			[]string{"start i 1"}},
		{"one that failed for good ends it",
			Facts{Pod: withInit(podWith(v1.RestartPolicyNever, "a"), "i", false), Named: images,
				Observed: Observed{Sandboxes: box(true), Containers: []Container{exited("i", 1)}}}, nil},
		{"init is not repeated beside running containers",
			Facts{Pod: withInit(podWith(v1.RestartPolicyAlways, "a"), "i", false), Named: images,
				Instances: started("a"),
				Observed:  Observed{Sandboxes: box(true), Containers: []Container{running("a")}}},
			nil},
		{"a sidecar that has not started holds back the rest",
			Facts{Pod: withInit(podWith(v1.RestartPolicyAlways, "a"), "s", true), Named: images,
				Observed: Observed{Sandboxes: box(true), Containers: []Container{running("s")}}}, nil},
		{"one that has started does not",
			Facts{Pod: withInit(podWith(v1.RestartPolicyAlways, "a"), "s", true), Named: images,
				Instances: started("s"),
				Observed:  Observed{Sandboxes: box(true), Containers: []Container{running("s")}}},
			[]string{"start a 0"}},
		{"a sidecar restarts beside Never",
			Facts{Pod: withInit(podWith(v1.RestartPolicyNever, "a"), "s", true), Named: images,
				Instances: started("a"),
				Observed:  Observed{Sandboxes: box(true), Containers: []Container{exited("s", 0), running("a")}}},
			[]string{"start s 1"}},
		{"a failed probe kills",
			Facts{Pod: podWith(v1.RestartPolicyAlways, "a"),
				Instances: map[string]Instance{"a-id": {Health: Health{Started: true, Failed: "liveness"}}},
				Observed:  Observed{Sandboxes: box(true), Containers: []Container{running("a")}}}, []string{"kill a"}},
		{"but once",
			Facts{Pod: podWith(v1.RestartPolicyAlways, "a"),
				Instances: map[string]Instance{"a-id": {Health: Health{Failed: "liveness"}, Killing: true}},
				Observed:  Observed{Sandboxes: box(true), Containers: []Container{running("a")}}}, nil},
		{"another image kills", Facts{Pod: podWith(v1.RestartPolicyAlways, "a"), Instances: started("a"),
			Observed: Observed{Sandboxes: box(true), Containers: []Container{changed}}}, []string{"kill a"}},
		{"a hook holds back the next container",
			Facts{Pod: podWith(v1.RestartPolicyAlways, "a", "b"), Named: images,
				Instances: map[string]Instance{"a-id": {Hook: true}},
				Observed:  Observed{Sandboxes: box(true), Containers: []Container{running("a")}}}, nil},
		{"a container that was made and never started is removed",
			Facts{Pod: podWith(v1.RestartPolicyAlways, "a"), Named: images,
				Observed: Observed{Sandboxes: box(true),
					Containers: []Container{{ID: "x", Name: "a", SandboxID: "box", State: Created}}}},
			[]string{"remove x"}},
		{"a failed pull shows its error",
			Facts{Pod: podWith(v1.RestartPolicyAlways, "a"), Observed: Observed{Sandboxes: box(true)},
				Named: pullFailed(0, false)}, []string{"a ErrImagePull"}},
		{"then its back-off", Facts{Pod: podWith(v1.RestartPolicyAlways, "a"), Observed: Observed{Sandboxes: box(true)},
			Named: pullFailed(5*time.Second, false)}, []string{"a ImagePullBackOff"}},
		{"then it is tried again",
			Facts{Pod: podWith(v1.RestartPolicyAlways, "a"), Observed: Observed{Sandboxes: box(true)},
				Named: pullFailed(9*time.Second, false)}, []string{"pull a", "a ImagePullBackOff"}},
		{"which changes nothing that is shown",
			Facts{Pod: podWith(v1.RestartPolicyAlways, "a"), Observed: Observed{Sandboxes: box(true)},
				Named: pullFailed(9*time.Second, true)}, []string{"a ImagePullBackOff"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			c.facts.Now = epoch
			if got := brief(Decide(c.facts)); !slices.Equal(got, c.want) {
				t.Errorf("got %q, want %q", got, c.want)
			}
		})
	}
}

func TestDecideEnd(t *testing.T) {
	pod := withInit(withInit(podWith(v1.RestartPolicyAlways, "a", "b"), "s", true), "i", true)
	for _, c := range []struct {
		name  string
		facts Facts
		want  []string
		ended bool
	}{
		{"containers first",
			Facts{
				Observed: Observed{Sandboxes: box(true),
					Containers: []Container{running("a"), running("b"), running("s")}}}, []string{"kill a", "kill b"},
			false},
		{"those that still end hold it up",
			Facts{Instances: map[string]Instance{"a-id": {Killing: true}},
				Observed: Observed{Sandboxes: box(true), Containers: []Container{running("a"), running("s")}}}, nil,
			false},
		{"then the last sidecar",
			Facts{
				Observed: Observed{Sandboxes: box(true),
					Containers: []Container{exited("a", 0), running("s"), running("i")}}}, []string{"kill i"}, false},
		{"then the first",
			Facts{Observed: Observed{Sandboxes: box(true), Containers: []Container{running("s"), exited("i", 0)}}},
			[]string{"kill s"}, false},
		{"then the sandbox", Facts{Observed: Observed{Sandboxes: box(true), Containers: []Container{exited("s", 0)}}},
			[]string{"stop box"}, false},
		{"then it has ended", Facts{Observed: Observed{Sandboxes: box(false), Containers: []Container{exited("a", 0)}}},
			nil, true},
		{"or never was", Facts{}, nil, true},
	} {
		t.Run(c.name, func(t *testing.T) {
			c.facts.Pod, c.facts.Now = pod, epoch
			p := DecideEnd(c.facts)
			if got := brief(p); !slices.Equal(got, c.want) || p.Ended != c.ended {
				t.Errorf("got %q, ended %v; want %q, %v", got, p.Ended, c.want, c.ended)
			}
		})
	}
}

// TestDecideProperties checks the properties of every plan, on random pods in random states.
func TestDecideProperties(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	for range 20000 {
		f := randomFacts(rng)
		p := Decide(f)
		if again := Decide(f); !reflect.DeepEqual(p, again) {
			t.Fatalf("two decisions on one state differ:\n%+v\n%+v", p, again)
		}
		check := func(ok bool, what string) {
			if !ok {
				t.Fatalf("%s\nfacts: %+v\nplan: %+v", what, f, p)
			}
		}
		ready := len(f.Observed.Sandboxes) > 0 && f.Observed.Sandboxes[0].Ready
		check(!p.CreateSandbox || !ready, "a sandbox is made beside one that is ready")
		check(!p.CreateSandbox || !anyAlive(&f.Observed), "a sandbox is made while something runs in an old one")
		check(len(p.Start) == 0 || ready, "a container is started without a sandbox")
		for _, k := range p.Kill {
			check(!f.Instances[k.ID].Killing, "a container is killed twice")
		}
		for _, s := range p.Start {
			last := f.Observed.Newest(s.Container.Name)
			check(last == nil || last.State == Exited, "a container is started beside itself")
			check(last == nil || s.Attempt == last.Attempt+1, "an attempt is not counted")
			check(
				last == nil || last.SandboxID != "box" || restarts.Again(f.Pod, s.Container, last.ExitCode) ||
					f.former(last), "a container is restarted against its policy")
			if last != nil && s.Restart {
				check(!f.Now.Before(f.Named[s.Container.Name].Restarts.due(last.FinishedAt)), "a back-off is cut short")
			}
		}
		for _, id := range p.RemoveContainers {
			i := slices.IndexFunc(f.Observed.Containers, func(c Container) bool { return c.ID == id })
			check(i >= 0 && f.Observed.Containers[i].State != Running, "a running container is removed")
		}
		// Ending comes to an end: nothing is left after the plans of a few rounds.
		check(endsWithin(f, 8), "ending does not end")
	}
}

func randomFacts(rng *rand.Rand) Facts {
	policies := []v1.RestartPolicy{v1.RestartPolicyAlways, v1.RestartPolicyOnFailure, v1.RestartPolicyNever}
	pod := podWith(policies[rng.IntN(3)], "a", "b")
	if rng.IntN(2) == 0 {
		withInit(pod, "s", true)
	}
	if rng.IntN(2) == 0 {
		withInit(pod, "i", false)
	}
	f := Facts{Pod: pod, Now: epoch.Add(time.Duration(rng.IntN(30)) * time.Second), Named: map[string]Named{},
		Instances: map[string]Instance{}}
	if rng.IntN(8) > 0 {
		f.Observed.Sandboxes = box(rng.IntN(4) > 0)
	}
	for _, name := range []string{"a", "b", "s", "i"} {
		var n Named
		if rng.IntN(2) == 0 {
			n.Image = "ref"
		}
		if rng.IntN(2) == 0 {
			n.Restarts = Restarts{Backoff{time.Duration(rng.IntN(30)) * time.Second}, epoch}
		}
		f.Named[name] = n
		for attempt := rng.IntN(4) - 1; attempt >= 0; attempt-- {
			c := exited(name, int32(rng.IntN(2)))
			c.Attempt, c.ID = uint32(attempt), fmt.Sprintf("%s-%d", name, attempt)
			if len(f.Observed.Sandboxes) == 0 || rng.IntN(6) == 0 {
				c.SandboxID = "older"
			}
			if f.Observed.Newest(name) == nil && rng.IntN(2) == 0 {
				c.State = ContainerState(rng.IntN(4))
				f.Instances[c.ID] = Instance{
					Health:  Health{Started: rng.IntN(2) == 0, Failed: []string{"", "liveness"}[rng.IntN(2)]},
					Killing: rng.IntN(4) == 0,
					Hook:    rng.IntN(4) == 0,
				}
			}
			f.Observed.Containers = append(f.Observed.Containers, c)
		}
	}
	return f
}

func anyAlive(o *Observed) bool {
	return slices.ContainsFunc(o.Containers, func(c Container) bool { return c.alive() })
}

// endsWithin plays a few rounds of ending, in a world that carries every plan out.
func endsWithin(f Facts, rounds int) bool {
	f.Observed.Containers = slices.Clone(f.Observed.Containers)
	f.Observed.Sandboxes = slices.Clone(f.Observed.Sandboxes)
	for range rounds {
		p := DecideEnd(f)
		if p.Ended {
			return !anyAlive(&f.Observed)
		}
		for i := range f.Observed.Containers {
			c := &f.Observed.Containers[i]
			if f.Instances[c.ID].Killing || slices.ContainsFunc(p.Kill, func(k Kill) bool { return k.ID == c.ID }) {
				c.State = Exited
			}
		}
		f.Observed.Containers = slices.DeleteFunc(f.Observed.Containers,
			func(c Container) bool { return slices.Contains(p.RemoveContainers, c.ID) })
		for i := range f.Observed.Sandboxes {
			if slices.Contains(p.StopSandboxes, f.Observed.Sandboxes[i].ID) {
				f.Observed.Sandboxes[i].Ready = false
			}
		}
	}
	return false
}

func TestRestarts(t *testing.T) {
	var b Restarts
	var waits []time.Duration
	now := epoch
	for range 8 {
		ended := now.Add(time.Second)
		waits = append(waits, b.due(ended).Sub(ended))
		now = b.due(ended)
		b.Again(ended, now)
	}
	want := []time.Duration{0, 10 * time.Second, 20 * time.Second, 40 * time.Second, 80 * time.Second,
		160 * time.Second, 300 * time.Second, 300 * time.Second}
	if !slices.Equal(waits, want) {
		t.Errorf("waits %v, want %v", waits, want)
	}
	if ended := now.Add(11 * time.Minute); !b.due(ended).Equal(ended) {
		t.Error("a container that ran for 11 minutes is not forgiven")
	}
}

// A container of an earlier version has no limits of its pod. It is given them as it runs, also if
// it wants to be restarted for others.
func TestAnUpgradeGivesLimitsWithoutRestart(t *testing.T) {
	pod := podWith(v1.RestartPolicyAlways, "a")
	pod.Spec.Resources = &v1.ResourceRequirements{Limits: v1.ResourceList{v1.ResourceMemory: resource.MustParse("1Gi")}}
	pod.Spec.Containers[0].ResizePolicy = []v1.ContainerResizePolicy{
		{ResourceName: v1.ResourceMemory, RestartPolicy: v1.RestartContainer}}
	requested := int64(0)
	for name, c := range map[string]struct {
		request *int64
		memory  int64
		resized bool
		want    []string
	}{
		"earlier":                {nil, 0, false, []string{"update a"}},
		"earlier, but resized":   {nil, 2 << 30, false, []string{"kill a"}},
		"earlier, and a new one": {nil, 0, true, []string{"kill a"}},
		"ours":                   {&requested, 0, false, []string{"kill a"}},
		"has them":               {&requested, 1 << 30, false, nil},
	} {
		has := running("a")
		has.MemoryRequest, has.Limits = c.request, &Limits{Shares: 2, Memory: c.memory}
		p := Decide(
			Facts{Pod: pod, Observed: Observed{Sandboxes: box(true), Containers: []Container{has}}, Now: epoch,
				Resized: c.resized})
		var got []string
		for _, k := range p.Kill {
			got = append(got, "kill "+k.Name)
		}
		for _, u := range p.Update {
			got = append(got, "update "+u.Name)
		}
		if !slices.Equal(got, c.want) {
			t.Errorf("%s: %q, want %q", name, got, c.want)
		}
	}
}

// A container that holds back the start of others does not hold back the resizes of those that run:
// the limits of their pod would shrink before theirs.
func TestResizeBehindAHook(t *testing.T) {
	always := v1.ContainerRestartPolicyAlways
	pod := podWith(v1.RestartPolicyAlways, "a", "b")
	pod.Spec.InitContainers = []v1.Container{{Name: "s1", Image: "img", RestartPolicy: &always},
		{Name: "s2", Image: "img", RestartPolicy: &always}}
	pod.Spec.EphemeralContainers = []v1.EphemeralContainer{
		{EphemeralContainerCommon: v1.EphemeralContainerCommon{Name: "debug"}}}
	pod.Spec.Resources = &v1.ResourceRequirements{Limits: v1.ResourceList{v1.ResourceMemory: resource.MustParse("1Gi")}}
	var containers []Container
	instances := map[string]Instance{}
	for _, name := range []string{"s1", "s2", "a", "b", "debug"} {
		c := running(name)
		c.Limits = &Limits{Shares: 2, Memory: 2 << 30}
		containers = append(containers, c)
		instances[c.ID] = Instance{Health: Health{Started: true}}
	}
	for _, hook := range []int{0, 2} {
		held := maps.Clone(instances)
		held[containers[hook].ID] = Instance{Health: Health{Started: true}, Hook: true}
		p := Decide(Facts{Pod: pod, Observed: Observed{Sandboxes: box(true), Containers: containers}, Now: epoch,
			Instances: held})
		var got []string
		for _, u := range p.Update {
			got = append(got, u.Name)
		}
		if slices.Sort(got); !slices.Equal(got, []string{"a", "b", "debug", "s1", "s2"}) {
			t.Errorf("while %s has a hook: %q", containers[hook].Name, got)
		}
	}
}

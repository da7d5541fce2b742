package lifecycle

import (
	"slices"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"

	"github.com/barque/barque/kubelet/podinfo"
)

// withRule gives a container the rule that the exit code 42 restarts all.
func withRule(c *v1.Container, policy v1.ContainerRestartPolicy) {
	c.RestartPolicy = &policy
	c.RestartPolicyRules = []v1.ContainerRestartRule{{
		Action: v1.ContainerRestartRuleActionRestartAllContainers,
		ExitCodes: &v1.ContainerRestartRuleOnExitCodes{Operator: v1.ContainerRestartRuleOnExitCodesOpIn,
			Values: []int32{42}},
	}}
}

// play carries plans out until nothing is left to do, and returns the plans. A killed container has
// ended at the next look.
func play(t *testing.T, f *Facts) (plans []string) {
	t.Helper()
	f.Instances = map[string]Instance{}
	for range 20 {
		p := Decide(*f)
		if status := Status(StatusInput{Facts: *f, Plan: p}); podinfo.Finished(status.Phase) {
			t.Errorf("after %q the pod is %s", plans, status.Phase)
			return plans
		}
		did := slices.DeleteFunc(brief(p), func(s string) bool { return len(s) > 2 && s[1] == ' ' })
		if len(did) == 0 {
			return plans
		}
		plans = append(plans, did...)
		for i := range f.Observed.Containers {
			c := &f.Observed.Containers[i]
			if slices.ContainsFunc(p.Kill, func(k Kill) bool { return k.ID == c.ID }) {
				c.State, c.ExitCode, c.FinishedAt = Exited, 137, f.Now
			}
		}
		for _, s := range p.Start {
			c := running(s.Container.Name)
			c.Attempt, c.Round = s.Attempt, s.Round
			c.ID = c.Name + time.Duration(c.Attempt).String()
			f.Instances[c.ID] = Instance{Health: Health{Started: true, Ready: true}}
			if c.Name == "i" {
				c.State, c.FinishedAt = Exited, f.Now
			}
			f.Observed.Containers = slices.Insert(f.Observed.Containers, 0, c)
		}
	}
	t.Errorf("there is no end: %q", plans)
	return plans
}

func TestAContainerRestartsAll(t *testing.T) {
	images := pulled("a", "b", "i", "s")
	pod := func(source string) *v1.Pod {
		p := withInit(withInit(podWith(v1.RestartPolicyNever, "a", "b"), "i", false), "s", true)
		for _, c := range podinfo.Containers(p) {
			if c.Name == source {
				policy := v1.ContainerRestartPolicyNever
				if source == "s" {
					policy = v1.ContainerRestartPolicyAlways
				}
				withRule(c, policy)
			}
		}
		return p
	}
	for _, c := range []struct {
		name       string
		source     string
		containers []Container
		want       []string
	}{
		{"a regular one", "a", []Container{exited("a", 42), running("b"), running("s"), exited("i", 0)},
			[]string{"kill b", "kill s", "start i 1", "start s 1", "start a 1", "start b 1"}},
		{"a sidecar", "s", []Container{running("a"), running("b"), exited("s", 42), exited("i", 0)},
			[]string{"kill a", "kill b", "start i 1", "start s 1", "start a 1", "start b 1"}},
		{"an init container, before the others", "i", []Container{exited("i", 42)},
			[]string{"start i 1", "start s 0", "start a 0", "start b 0"}},
		{"others that failed or succeeded before", "a",
			[]Container{exited("a", 42), exited("b", 1), running("s"), exited("i", 0)},
			[]string{"kill s", "start i 1", "start s 1", "start a 1", "start b 1"}},
		{"another exit code", "a", []Container{exited("a", 1), running("b"), running("s"), exited("i", 0)}, nil},
	} {
		t.Run(c.name, func(t *testing.T) {
			f := Facts{Pod: pod(c.source), Now: epoch, Named: images,
				Observed: Observed{Sandboxes: box(true), Containers: c.containers}}
			if got := play(t, &f); !slices.Equal(got, c.want) {
				t.Errorf("got %q, want %q", got, c.want)
			}
		})
	}
}

// All containers that a rule restarts show that they wait, the reason, and their last end.
func TestStatusWhileAllRestart(t *testing.T) {
	p := withInit(podWith(v1.RestartPolicyNever, "a", "b"), "i", false)
	withRule(&p.Spec.Containers[0], v1.ContainerRestartPolicyNever)
	f := Facts{Pod: p, Now: epoch, Observed: Observed{Sandboxes: box(true),
		Containers: []Container{exited("a", 42), running("b"), exited("i", 0)}}}
	restarting := func() (v1.PodStatus, v1.ConditionStatus) {
		status := Status(StatusInput{Facts: f, Plan: Decide(f), Runtime: "r"})
		return status, podinfo.Condition(&status, v1.AllContainersRestarting).Status
	}
	status, condition := restarting()
	if status.Phase != v1.PodRunning || condition != v1.ConditionTrue {
		t.Errorf("while b ends: %s, restarting %s", status.Phase, condition)
	}
	f.Observed.Containers[1] = exited("b", 137)
	status, condition = restarting()
	if status.Phase != v1.PodRunning || condition != v1.ConditionFalse {
		t.Errorf("when b has ended: %s, restarting %s", status.Phase, condition)
	}
	for _, s := range append(status.ContainerStatuses, status.InitContainerStatuses...) {
		if s.State.Waiting == nil || s.State.Waiting.Reason != reasonRestartingAll ||
			s.LastTerminationState.Terminated == nil {
			t.Errorf("%s: %+v, before that %+v", s.Name, s.State, s.LastTerminationState)
		}
	}
}

// A container whose rule restarts it alone, in a pod whose others never restart.
func TestStatusOfAnInitContainerThatARuleRestarts(t *testing.T) {
	p := withInit(podWith(v1.RestartPolicyNever, "a"), "i", false)
	withRule(&p.Spec.InitContainers[0], v1.ContainerRestartPolicyNever)
	p.Spec.InitContainers[0].RestartPolicyRules[0].Action = v1.ContainerRestartRuleActionRestart
	again := running("i")
	again.Attempt = 1
	for name, c := range map[string]struct {
		containers []Container
		want       v1.PodPhase
	}{
		"it has just ended": {[]Container{exited("i", 42)}, v1.PodPending},
		"it runs again":     {[]Container{again, exited("i", 42)}, v1.PodPending},
		"no rule matches":   {[]Container{exited("i", 1)}, v1.PodFailed},
	} {
		f := Facts{Pod: p, Now: epoch, Observed: Observed{Sandboxes: box(true), Containers: c.containers}}
		if got := Status(StatusInput{Facts: f, Plan: Decide(f)}).Phase; got != c.want {
			t.Errorf("%s: %s, want %s", name, got, c.want)
		}
	}
}

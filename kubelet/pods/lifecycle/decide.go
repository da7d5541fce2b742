package lifecycle

import (
	"fmt"
	"time"

	v1 "k8s.io/api/core/v1"

	"github.com/barque/barque/kubelet/podinfo"
	"github.com/barque/barque/kubelet/restarts"
)

// Reasons of waiting containers, in upstream's words.
const (
	ReasonErrImagePull     = "ErrImagePull"
	ReasonImagePullBackOff = "ImagePullBackOff"

	reasonCreating         = "ContainerCreating"
	reasonInitializing     = "PodInitializing"
	reasonCrashLoopBackOff = "CrashLoopBackOff"
)

// PostStartHook is the Failed of a container's Health, in place of a probe's name, when its
// postStart hook has failed.
const PostStartHook = "postStart hook"

// pullErrorShown is how long a failed pull shows its own error before it shows as back-off.
const pullErrorShown = 2 * time.Second

// Decide returns the next steps of a living pod. It is a function of its argument alone.
//
// A pod needs a sandbox; then its init containers, one after the other, where a sidecar (an init
// container with restartPolicy Always) only has to have started; then all its containers. An ended
// container is started again by its restart policy, after its back-off. A new sandbox starts all
// anew. So does a new round, which begins when a container ends under a rule that restarts all.
func Decide(f Facts) (p Plan) {
	defer p.tidy(&f) // the named result: another one would be copied before
	box := f.Observed.Sandbox()
	if box == nil || !box.Ready {
		p.replaceSandbox(&f, box)
		return p
	}
	for _, old := range f.Observed.Sandboxes[1:] {
		if old.Ready {
			p.StopSandboxes = append(p.StopSandboxes, old.ID)
		}
	}
	if p.evict(&f, box) || p.endRound(&f) {
		return p
	}
	if p.initialize(&f, box) && p.regulars(&f) {
		for i := range f.Pod.Spec.EphemeralContainers {
			if e := ephemeral(f.Pod, i); f.Observed.Newest(e.Name) == nil {
				p.start(&f, e, nil)
			}
		}
	}
	p.resizeOthers(&f)
	return p
}

// regulars plans the pod's containers and reports whether none of them holds others back.
func (p *Plan) regulars(f *Facts) bool {
	for i := range f.Pod.Spec.Containers {
		if !p.regular(f, &f.Pod.Spec.Containers[i]) {
			return false
		}
	}
	return true
}

// ephemeral returns an ephemeral container in the form of a regular one.
func ephemeral(pod *v1.Pod, i int) *v1.Container {
	c := v1.Container(pod.Spec.EphemeralContainers[i].EphemeralContainerCommon)
	return &c
}

// resizeOthers resizes running containers that the plan does not have yet: ephemeral containers,
// and those that another one holds back. The pod's group must not shrink before them.
func (p *Plan) resizeOthers(f *Facts) {
	planned := map[string]bool{}
	for _, k := range p.Kill {
		planned[k.ID] = true
	}
	for _, u := range p.Update {
		planned[u.ID] = true
	}
	resize := func(c *v1.Container) {
		if last := f.Observed.Newest(c.Name); last != nil && last.State == Running && !planned[last.ID] {
			p.resize(f, c, last)
		}
	}
	for _, c := range podinfo.Containers(f.Pod) {
		resize(c)
	}
	for i := range f.Pod.Spec.EphemeralContainers {
		resize(ephemeral(f.Pod, i))
	}
}

// replaceSandbox brings a sandbox up in place of one that died, once nothing runs in the old one.
func (p *Plan) replaceSandbox(f *Facts, box *Sandbox) {
	if !worthSandbox(f) {
		return
	}
	waiting := reasonCreating
	if len(f.Pod.Spec.InitContainers) > 0 {
		waiting = reasonInitializing
	}
	for i := range f.Pod.Spec.Containers {
		p.wait(f.Pod.Spec.Containers[i].Name, waiting, "")
	}
	if p.evict(f, nil) {
		return
	}
	if t := f.SandboxTrouble; t != nil && f.Now.Before(t.RetryAt) {
		p.WakeBy(t.RetryAt)
		return
	}
	p.CreateSandbox = true
	if box != nil {
		p.SandboxAttempt = box.Attempt + 1
		p.StopSandboxes = append(p.StopSandboxes, box.ID)
	}
}

// evict ends the containers in other sandboxes than box, and reports whether there are any: they
// have other addresses than the pod has now, or none.
func (p *Plan) evict(f *Facts, box *Sandbox) (any bool) {
	for i := range f.Observed.Containers {
		c := &f.Observed.Containers[i]
		if c.State == Exited || (box != nil && c.SandboxID == box.ID) {
			continue
		}
		any = true
		switch {
		case c.State == Created:
			p.RemoveContainers = append(p.RemoveContainers, c.ID)
		case !f.Instances[c.ID].Killing:
			p.Kill = append(p.Kill, Kill{ID: c.ID, Name: c.Name, Reason: "The pod's sandbox died and is replaced."})
		}
	}
	return any
}

// worthSandbox reports whether any container would be started in a new sandbox.
func worthSandbox(f *Facts) bool {
	for i := range f.Pod.Spec.Containers {
		c := &f.Pod.Spec.Containers[i]
		last := f.Observed.Newest(c.Name)
		if last == nil {
			if !lost(f.Pod, c.Name) || restarts.Policy(f.Pod, c) != v1.RestartPolicyNever {
				return !initFailed(f)
			}
			continue
		}
		if last.State != Exited || f.former(last) || restarts.Again(f.Pod, c, last.ExitCode) {
			return true
		}
	}
	return false
}

// initFailed reports whether an init container has ended the pod.
func initFailed(f *Facts) bool {
	for i := range f.Pod.Spec.InitContainers {
		c := &f.Pod.Spec.InitContainers[i]
		if last := f.Observed.Newest(c.Name); !restarts.IsSidecar(c) && last != nil && last.State == Exited &&
			last.ExitCode != 0 && !f.former(last) && !restarts.Again(f.Pod, c, last.ExitCode) {
			return true
		}
	}
	return false
}

// lost reports whether the API server has seen a container that the runtime no longer knows.
func lost(pod *v1.Pod, name string) bool {
	for i := range pod.Status.ContainerStatuses {
		if s := &pod.Status.ContainerStatuses[i]; s.Name == name {
			return wasStarted(s)
		}
	}
	return false
}

// wasStarted reports whether the API server has seen a container run or end. One that was created
// but not started when the kubelet ended is created anew, whatever its restart policy.
func wasStarted(s *v1.ContainerStatus) bool {
	return s != nil && s.ContainerID != "" && (s.State.Running != nil || s.State.Terminated != nil)
}

// initialize plans the init containers and reports whether the others may run.
func (p *Plan) initialize(f *Facts, box *Sandbox) bool {
	initialized := isInitialized(f, box.ID)
	for i := range f.Pod.Spec.InitContainers {
		c := &f.Pod.Spec.InitContainers[i]
		if initialized && !restarts.IsSidecar(c) {
			continue
		}
		if !p.initContainer(f, box, c) && !initialized {
			for j := range f.Pod.Spec.Containers {
				p.wait(f.Pod.Spec.Containers[j].Name, reasonInitializing, "")
			}
			for j := i + 1; j < len(f.Pod.Spec.InitContainers); j++ {
				p.wait(f.Pod.Spec.InitContainers[j].Name, reasonInitializing, "")
			}
			return false
		}
	}
	return true
}

// isInitialized reports whether the sandbox is past its init containers: a container has been made.
func isInitialized(f *Facts, sandboxID string) bool {
	for i := range f.Pod.Spec.Containers {
		if c := f.Observed.newestIn(sandboxID, f.Pod.Spec.Containers[i].Name); c != nil && !f.former(c) {
			return true
		}
	}
	return false
}

// initContainer plans one init container and reports whether the next one may start.
func (p *Plan) initContainer(f *Facts, box *Sandbox, c *v1.Container) bool {
	last := f.Observed.newestIn(box.ID, c.Name)
	switch {
	case last == nil:
		p.start(f, c, nil)
		return false
	case f.former(last):
		p.nextRound(f, c, last)
		return false
	case last.State == Created || last.State == Unknown:
		p.RemoveContainers = append(p.RemoveContainers, last.ID)
		return false
	case last.State == Running:
		if !restarts.IsSidecar(c) {
			p.resize(f, c, last)
			return false
		}
		p.killIfFailed(f, c, last)
		is := f.Instances[last.ID]
		return is.Health.Started && !is.Hook
	case restarts.IsSidecar(c):
		p.restart(f, c, last)
		return false
	case last.ExitCode == 0:
		return true
	}
	if restarts.Again(f.Pod, c, last.ExitCode) {
		p.restart(f, c, last)
	}
	return false
}

// regular plans one of the pod's containers and reports whether the next one may be planned.
func (p *Plan) regular(f *Facts, c *v1.Container) bool {
	last := f.Observed.Newest(c.Name)
	if last == nil {
		if lost(f.Pod, c.Name) && restarts.Policy(f.Pod, c) == v1.RestartPolicyNever {
			return true
		}
		p.start(f, c, nil)
		return true
	}
	if f.former(last) {
		p.nextRound(f, c, last)
		return true
	}
	switch last.State {
	case Created, Unknown:
		p.RemoveContainers = append(p.RemoveContainers, last.ID)
	case Running:
		p.killIfFailed(f, c, last)
		return !f.Instances[last.ID].Hook // a running postStart hook holds back the containers after it
	case Exited:
		if f.Named[c.Name].Replacing || restarts.Again(f.Pod, c, last.ExitCode) {
			p.restart(f, c, last)
		}
	}
	return true
}

// killIfFailed ends a container whose probe has failed for good or whose image was changed, and
// resizes others.
func (p *Plan) killIfFailed(f *Facts, c *v1.Container, running *Container) {
	is := f.Instances[running.ID]
	if is.Killing {
		return
	}
	kill := Kill{ID: running.ID, Name: c.Name}
	switch probe := is.Health.Failed; {
	case probe != "":
		kill.Trouble = probe
		kill.Reason = fmt.Sprintf("Container %s failed %s probe, will be restarted", c.Name, probe)
		if probe == PostStartHook {
			kill.Reason = "FailedPostStartHook"
		}
	case running.SpecImage != "" && running.SpecImage != c.Image:
		kill.Replace = true
		kill.Reason = fmt.Sprintf("Container %s definition changed, will be restarted", c.Name)
	default:
		p.resize(f, c, running)
		return
	}
	p.Kill = append(p.Kill, kill)
}

// restart starts a container again, or sets its back-off and when it is over.
func (p *Plan) restart(f *Facts, c *v1.Container, ended *Container) {
	r := f.Named[c.Name].Restarts
	due := r.due(ended.FinishedAt)
	if due.After(ended.FinishedAt) {
		// It is shown until the container runs again, not only until its turn comes.
		p.wait(c.Name, reasonCrashLoopBackOff, fmt.Sprintf("back-off %s restarting failed container=%s pod=%s_%s(%s)",
			r.Pause, c.Name, f.Pod.Name, f.Pod.Namespace, f.Pod.UID))
	}
	if f.Now.Before(due) {
		if p.RestartingMessage == nil {
			p.RestartingMessage = map[string]string{}
		}
		p.RestartingMessage[c.Name] = "Back-off restarting failed container " + c.Name + " in pod " +
			f.Pod.Name + "_" + f.Pod.Namespace + "(" + string(f.Pod.UID) + ")"
		p.WakeBy(due)
		return
	}
	p.start(f, c, ended)
}

// start gets the image and then starts the container, unless it is in trouble.
func (p *Plan) start(f *Facts, c *v1.Container, ended *Container) {
	is := f.Named[c.Name]
	if t := is.Trouble; t != nil {
		// It is shown until the next try has come to its end.
		p.showTrouble(f, c, t)
		if f.Now.Before(t.RetryAt) {
			p.WakeBy(t.RetryAt)
			return
		}
	}
	if ended == nil && is.Trouble == nil {
		waiting := reasonCreating
		if len(f.Pod.Spec.InitContainers) > 0 {
			waiting = reasonInitializing
		}
		p.wait(c.Name, waiting, "")
	}
	switch {
	case is.Image != "":
		p.Start = append(p.Start,
			Start{Container: c, Attempt: nextAttempt(f, c.Name), Round: f.round(), ImageRef: is.Image,
				Restart: ended != nil})
	case !is.Pulling:
		p.Pull = append(p.Pull, c)
	}
}

func (p *Plan) showTrouble(f *Facts, c *v1.Container, t *Trouble) {
	if t.Reason != ReasonErrImagePull {
		p.wait(c.Name, t.Reason, t.Message)
		return
	}
	if turn := t.Since.Add(pullErrorShown); f.Now.Before(turn) {
		p.WakeBy(turn)
		p.wait(c.Name, t.Reason, t.Message)
		return
	}
	p.wait(c.Name, ReasonImagePullBackOff,
		fmt.Sprintf("Back-off pulling image %q: %s: %s", c.Image, t.Reason, t.Message))
}

// nextAttempt numbers the next container of that name, so that it goes on over restarts of the
// kubelet and even when the runtime has forgotten the earlier ones.
func nextAttempt(f *Facts, name string) uint32 {
	if last := f.Observed.Newest(name); last != nil {
		return last.Attempt + 1
	}
	for _, list := range [][]v1.ContainerStatus{f.Pod.Status.InitContainerStatuses, f.Pod.Status.ContainerStatuses} {
		for i := range list {
			if s := &list[i]; s.Name == name && s.ContainerID != "" {
				return uint32(s.RestartCount) + 1
			}
		}
	}
	return 0
}

// tidy removes ended containers beyond the newest two of each name, and empty earlier sandboxes.
func (p *Plan) tidy(f *Facts) {
	kept := map[string]int{}
	occupied := map[string]bool{}
	for i := range f.Observed.Containers {
		c := &f.Observed.Containers[i]
		if kept[c.Name]++; kept[c.Name] > 2 && c.State == Exited {
			p.RemoveContainers = append(p.RemoveContainers, c.ID)
			continue
		}
		occupied[c.SandboxID] = true
	}
	for i, box := range f.Observed.Sandboxes {
		if i > 0 && !box.Ready && !occupied[box.ID] {
			p.RemoveSandboxes = append(p.RemoveSandboxes, box.ID)
		}
	}
}

// DecideEnd returns the next steps of ending a pod: its containers first, then its sidecars from
// the last to the first, then the sandbox. It is a function of its argument alone.
func DecideEnd(f Facts) Plan {
	var p Plan
	sidecars := map[string]int{}
	if f.Pod != nil {
		for i := range f.Pod.Spec.InitContainers {
			if c := &f.Pod.Spec.InitContainers[i]; restarts.IsSidecar(c) {
				sidecars[c.Name] = i
			}
		}
	}
	lastSidecar := -1
	alive := false
	for i := range f.Observed.Containers {
		c := &f.Observed.Containers[i]
		switch {
		case c.State == Created:
			p.RemoveContainers = append(p.RemoveContainers, c.ID)
		case !c.alive():
		default:
			if at, ok := sidecars[c.Name]; ok {
				lastSidecar = max(lastSidecar, at)
				continue
			}
			alive = true
			if !f.Instances[c.ID].Killing {
				p.Kill = append(p.Kill, Kill{ID: c.ID, Name: c.Name, Reason: "Stopping container " + c.Name})
			}
		}
	}
	if alive {
		return p
	}
	if lastSidecar >= 0 {
		name := f.Pod.Spec.InitContainers[lastSidecar].Name
		for i := range f.Observed.Containers {
			if c := &f.Observed.Containers[i]; c.Name == name && c.alive() && !f.Instances[c.ID].Killing {
				p.Kill = append(p.Kill, Kill{ID: c.ID, Name: c.Name, Reason: "Stopping container " + c.Name})
			}
		}
		return p
	}
	for _, box := range f.Observed.Sandboxes {
		if box.Ready {
			p.StopSandboxes = append(p.StopSandboxes, box.ID)
		}
	}
	p.Ended = len(p.StopSandboxes) == 0
	return p
}

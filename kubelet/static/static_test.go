package static

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"
)

const manifest = `apiVersion: v1
kind: Pod
metadata: {name: Web, namespace: kube-system, labels: {app: web}}
spec:
  containers:
  - name: c
    image: app:%d
    livenessProbe: {httpGet: {port: 80}}
    resources: {limits: {cpu: 100m}}
`

func TestParse(t *testing.T) {
	now := time.Now()
	raw := fmt.Appendf(nil, manifest, 1)
	pod, err := Parse(raw, "/m/web.yaml", "n1", now)
	if err != nil {
		t.Fatal(err)
	}
	c := pod.Spec.Containers[0]
	if pod.Name != "web-n1" || pod.Namespace != "kube-system" || pod.Spec.NodeName != "n1" ||
		pod.Annotations[annotationSource] != "file" ||
		pod.Annotations[annotationHash] != string(pod.UID) || pod.Spec.RestartPolicy != v1.RestartPolicyAlways ||
		*pod.Spec.TerminationGracePeriodSeconds != 30 ||
		c.LivenessProbe.PeriodSeconds != 10 || c.LivenessProbe.HTTPGet.Path != "/" ||
		c.Resources.Requests.Cpu().String() != "100m" || c.TerminationMessagePath == "" {
		t.Errorf("%+v", pod)
	}
	again, _ := Parse(append(raw, "\n\n"...), "/m/web.yaml", "n1", now.Add(time.Hour))
	other, _ := Parse(fmt.Appendf(nil, manifest, 2), "/m/web.yaml", "n1", now)
	if again.UID != pod.UID || other.UID == pod.UID {
		t.Errorf("UIDs: %s, the same again %s, another image %s", pod.UID, again.UID, other.UID)
	}
	for _, wrong := range []string{"", "kind: Pod", "{",
		strings.Replace(string(raw), "spec:", "spec:\n  serviceAccountName: x", 1),
		strings.Replace(string(raw), "spec:", "spec:\n  nonsense: x", 1),
		strings.Replace(string(raw), "Web", "We_b", 1),
		string(raw) + "    envFrom: [{secretRef: {name: s}}]\n",
		string(raw) + "  volumes: [{name: v, secret: {secretName: s}}]\n"} {
		if _, err := Parse([]byte(wrong), "/m/x", "n1", now); err == nil {
			t.Errorf("taken:\n%s", wrong)
		}
	}
}

// A pod of the API server never counts as a manifest's, whatever its annotations.
func TestFromAPI(t *testing.T) {
	pod := &v1.Pod{ObjectMeta: metav1.ObjectMeta{Annotations: map[string]string{annotationSource: "file"}}}
	if got := FromAPI(pod); isStatic(got) || pod.Annotations[annotationSource] != "file" {
		t.Errorf("%v, and the object became %v", got.Annotations, pod.Annotations)
	}
}

// host runs pods: they end after a while.
type host struct {
	mu    sync.Mutex
	pods  map[types.UID]*v1.Pod
	slow  bool
	order []string
}

func (h *host) Update(pod *v1.Pod) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.pods[pod.UID] = pod
	h.order = append(h.order, "run "+pod.Spec.Containers[0].Image)
}

func (h *host) Remove(pod *v1.Pod) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if !h.slow {
		h.order = append(h.order, "end "+pod.Spec.Containers[0].Image)
		delete(h.pods, pod.UID)
	}
}

func (h *host) Has(uid types.UID) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.pods[uid] != nil
}

type statuses struct {
	mu  sync.Mutex
	set map[types.UID]v1.PodPhase
}

func (s *statuses) Set(pod *v1.Pod, status v1.PodStatus) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.set[pod.UID] = status.Phase
}
func (*statuses) Finish(*v1.Pod)   {}
func (*statuses) Forget(types.UID) {}

func TestSourceAndMirrors(t *testing.T) {
	dir := t.TempDir()
	write := func(version int) {
		if err := os.WriteFile(filepath.Join(dir, "web.yaml"), fmt.Appendf(nil, manifest, version), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write(1)
	client := fake.NewClientset()
	h, told := &host{pods: map[types.UID]*v1.Pod{}}, &statuses{set: map[types.UID]v1.PodPhase{}}
	m := NewMirrors(
		MirrorsConfig{Client: client, Status: told, Wake: func(types.UID) {}, Logger: slog.New(slog.DiscardHandler),
			Node: func() *v1.Node { return &v1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n1", UID: "node-uid"}} }})
	s := NewSource(SourceConfig{Dir: dir, NodeName: "n1", Pods: h, Mirrors: m, Logger: slog.New(slog.DiscardHandler)})
	ctx := context.Background()
	round := func() { // a round of Run and the informer's events of it
		t.Helper()
		s.sync()
		for range 2 {
			if err := m.sync(ctx); err != nil {
				t.Fatal(err)
			}
			list, err := client.CoreV1().Pods("").List(ctx, metav1.ListOptions{})
			if err != nil {
				t.Fatal(err)
			}
			for _, old := range m.mirrors {
				m.Observe(old, true)
			}
			for i := range list.Items {
				if list.Items[i].UID == "" { // the API in memory assigns none
					list.Items[i].UID = "mirror"
				}
				m.Observe(&list.Items[i], false)
			}
		}
	}
	m.Synced()
	round()
	mirror, err := client.CoreV1().Pods("kube-system").Get(ctx, "web-n1", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	owner := mirror.OwnerReferences
	if len(owner) != 1 || owner[0].Kind != "Node" || owner[0].UID != "node-uid" || owner[0].Controller == nil ||
		!IsMirror(mirror) {
		t.Errorf("mirror: %+v", mirror.ObjectMeta)
	}
	first := s.running["kube-system/web-n1"]
	m.Set(first, v1.PodStatus{Phase: v1.PodRunning})
	if told.set["mirror"] != v1.PodRunning {
		t.Errorf("told: %v", told.set)
	}
	// A client deletes the mirror: the pod stays and the mirror comes back.
	if err := client.CoreV1().Pods("kube-system").Delete(ctx, "web-n1", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	m.Observe(m.mirrors["kube-system/web-n1"], true)
	round()
	if _, err := client.CoreV1().Pods("kube-system").Get(ctx, "web-n1", metav1.GetOptions{}); err != nil ||
		!h.Has(first.UID) {
		t.Errorf("after the mirror was deleted: %v, the pod runs: %v", err, h.Has(first.UID))
	}
	// The file changes: the next pod waits for the end of this one, which has its name.
	h.slow = true
	write(2)
	round()
	h.slow = false
	round()
	round()
	if got := strings.Join(h.order, ", "); got != "run app:1, end app:1, run app:2" {
		t.Errorf("order: %s", got)
	}
	if mirror, err = client.CoreV1().Pods("kube-system").Get(ctx, "web-n1", metav1.GetOptions{}); err != nil ||
		mirror.Spec.Containers[0].Image != "app:2" {
		t.Errorf("the mirror of the new file: %v", err)
	}
	// A mistake ends it, as the manifest is gone.
	if err := os.WriteFile(filepath.Join(dir, "web.yaml"), []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	round()
	round()
	if list, _ := client.CoreV1().Pods("").List(ctx, metav1.ListOptions{}); len(list.Items) != 0 || len(h.pods) != 0 {
		t.Errorf("left: %d mirrors, %d pods", len(list.Items), len(h.pods))
	}
}

// Mirrors without a static pod go, also those of an earlier process.
func TestOldMirrorsGo(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		old := &v1.Pod{
			ObjectMeta: metav1.ObjectMeta{Name: "old-n1", Namespace: "default", UID: "u",
				Annotations: map[string]string{v1.MirrorPodAnnotationKey: "x"}}}
		client := fake.NewClientset(old)
		m := NewMirrors(
			MirrorsConfig{Client: client, Status: &statuses{}, Wake: func(types.UID) {},
				Logger: slog.New(slog.DiscardHandler)})
		ctx, cancel := context.WithCancel(context.Background())
		done := make(chan error, 1)
		go func() { done <- m.Run(ctx) }()
		m.Observe(old, false)
		m.None()
		synctest.Wait()
		if _, err := client.CoreV1().Pods("default").Get(ctx, "old-n1", metav1.GetOptions{}); err != nil {
			t.Errorf("gone before all are known: %v", err)
		}
		m.Synced()
		synctest.Wait()
		if _, err := client.CoreV1().Pods("default").Get(ctx, "old-n1", metav1.GetOptions{}); err == nil {
			t.Error("it stays")
		}
		cancel()
		<-done
	})
}

// sourceOf returns a source of one manifest, and its world.
func sourceOf(t *testing.T, client *fake.Clientset) (s *Source, h *host, write func(), remove func()) {
	dir := t.TempDir()
	file := filepath.Join(dir, "web.yaml")
	h = &host{pods: map[types.UID]*v1.Pod{}}
	m := NewMirrors(
		MirrorsConfig{Client: client, Status: &statuses{set: map[types.UID]v1.PodPhase{}}, Wake: func(types.UID) {},
			Logger: slog.New(slog.DiscardHandler),
			Node:   func() *v1.Node { return &v1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n1", UID: "node-uid"}} }})
	m.Synced()
	s = NewSource(SourceConfig{Dir: dir, NodeName: "n1", Pods: h, Mirrors: m, Logger: slog.New(slog.DiscardHandler)})
	write = func() {
		if err := os.WriteFile(file, fmt.Appendf(nil, manifest, 1), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	remove = func() {
		if err := os.Remove(file); err != nil {
			t.Fatal(err)
		}
	}
	return s, h, write, remove
}

// TestManifestComesBack: a pod whose manifest is moved away and back, while the pod has time to
// end, runs again once it has ended. It shows as another one: the first one has ended.
func TestManifestComesBack(t *testing.T) {
	s, h, write, remove := sourceOf(t, fake.NewClientset())
	write()
	s.sync()
	uid := s.running["kube-system/web-n1"].UID
	s.Mirrors.Observe(&v1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "kube-system", Name: "web-n1", UID: "mirror",
		Annotations: map[string]string{v1.MirrorPodAnnotationKey: string(uid)}}}, false)
	h.slow = true
	remove()
	if s.sync() {
		t.Error("nobody looks whether the pod has ended")
	}
	write()
	if s.sync() {
		t.Error("nobody looks whether the pod has ended, when its manifest is back")
	}
	h.mu.Lock()
	delete(h.pods, uid)
	h.mu.Unlock()
	s.sync()
	if !h.Has(uid) {
		t.Fatal("the pod does not run again")
	}
	if _, surplus := s.Mirrors.plan(); len(surplus) != 1 || s.Mirrors.of(h.pods[uid]) != nil {
		t.Errorf("the mirror of the pod that has ended stays: surplus %v", surplus)
	}
	// The kubelet has ended it for another reason, such as taking it for an orphan.
	h.mu.Lock()
	delete(h.pods, uid)
	h.mu.Unlock()
	s.sync()
	if !h.Has(uid) {
		t.Error("a pod that others have ended does not run again")
	}
}

// TestManifestsAreRead: Known is closed when all static pods are known.
func TestManifestsAreRead(t *testing.T) {
	s, h, write, _ := sourceOf(t, fake.NewClientset())
	select {
	case <-s.Known():
		t.Error("before the first look")
	default:
	}
	dir := s.Dir
	s.Dir = filepath.Join(dir, "web.yaml")
	write()
	s.sync()
	select {
	case <-s.Known():
		t.Error("though the directory cannot be read")
	default:
	}
	s.Dir = dir
	s.sync()
	<-s.Known()
	if len(h.pods) != 1 {
		t.Errorf("%d pods", len(h.pods))
	}
}

// TestWhatAPodHadBeen: after a restart of the kubelet a pod goes on with its mirror's status. One
// that was ended or refused starts anew.
func TestWhatAPodHadBeen(t *testing.T) {
	ended := v1.ContainerStatus{Name: "c", RestartCount: 3, ContainerID: "x://1",
		State: v1.ContainerState{Terminated: &v1.ContainerStateTerminated{}}}
	for _, c := range []struct {
		name    string
		policy  v1.RestartPolicy
		status  v1.PodStatus
		adopted bool
	}{
		{"runs", v1.RestartPolicyAlways,
			v1.PodStatus{Phase: v1.PodRunning, ContainerStatuses: []v1.ContainerStatus{ended}}, true},
		{"refused", v1.RestartPolicyAlways, v1.PodStatus{Phase: v1.PodFailed, Reason: "OutOfcpu"}, false},
		{"refused, and would run once", v1.RestartPolicyNever, v1.PodStatus{Phase: v1.PodFailed, Reason: "NodePorts"},
			false},
		{"ended by the node", v1.RestartPolicyAlways,
			v1.PodStatus{Phase: v1.PodFailed, ContainerStatuses: []v1.ContainerStatus{ended}}, false},
		{"ended by the node, and would run once", v1.RestartPolicyNever,
			v1.PodStatus{Phase: v1.PodFailed, ContainerStatuses: []v1.ContainerStatus{ended},
				Conditions: []v1.PodCondition{{Type: v1.DisruptionTarget, Status: v1.ConditionTrue}}}, false},
		{"ran to its end", v1.RestartPolicyNever,
			v1.PodStatus{Phase: v1.PodSucceeded, ContainerStatuses: []v1.ContainerStatus{ended}}, true},
	} {
		m := NewMirrors(MirrorsConfig{Wake: func(types.UID) {}})
		pod := &v1.Pod{
			ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "p", UID: "u",
				Annotations: map[string]string{annotationHash: "h"}},
			Spec: v1.PodSpec{RestartPolicy: c.policy, Containers: []v1.Container{{Name: "c"}}}}
		m.Observe(
			&v1.Pod{
				ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "p", UID: "m",
					Annotations: map[string]string{v1.MirrorPodAnnotationKey: "h"}},
				Status: c.status}, false)
		m.adopt(pod)
		m.want(map[string]*v1.Pod{"ns/p": pod})
		_, surplus := m.plan()
		if got := pod.Status.Phase == c.status.Phase; got != c.adopted || len(surplus) == 0 != c.adopted {
			t.Errorf("%s: status %+v, surplus mirrors %d", c.name, pod.Status, len(surplus))
		}
	}
}

// TestOneBadMirror: a missing namespace keeps no other pod from its mirror.
func TestOneBadMirror(t *testing.T) {
	client := fake.NewClientset()
	client.PrependReactor("create", "pods", func(a clienttesting.Action) (bool, runtime.Object, error) {
		if a.GetNamespace() == "missing" {
			return true, nil, errors.New(`namespaces "missing" not found`)
		}
		return false, nil, nil
	})
	m := NewMirrors(MirrorsConfig{Client: client, Wake: func(types.UID) {},
		Node: func() *v1.Node { return &v1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n1", UID: "node-uid"}} }})
	pods := map[string]*v1.Pod{}
	for _, namespace := range []string{"a", "b", "missing", "y", "z"} {
		pods[namespace+
			"/p"] = &v1.Pod{
			ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "p",
				Annotations: map[string]string{annotationHash: "h"}}}
	}
	m.Synced()
	m.want(pods)
	if err := m.sync(t.Context()); err == nil || !strings.Contains(err.Error(), "missing/p") {
		t.Errorf("the pod without a mirror: %v", err)
	}
	if list, err := client.CoreV1().Pods("").List(t.Context(), metav1.ListOptions{}); err != nil ||
		len(list.Items) != 4 {
		t.Errorf("%d mirrors: %v", len(list.Items), err)
	}
}

// TestManifestsAreReadAmidChanges: a file that changes all the time, such as that of an editor,
// does not keep a manifest from being read.
func TestManifestsAreReadAmidChanges(t *testing.T) {
	dir := t.TempDir()
	h := &host{pods: map[types.UID]*v1.Pod{}}
	m := NewMirrors(
		MirrorsConfig{Client: fake.NewClientset(), Status: &statuses{set: map[types.UID]v1.PodPhase{}},
			Wake:   func(types.UID) {},
			Logger: slog.New(slog.DiscardHandler), Node: func() *v1.Node { return nil }})
	s := NewSource(SourceConfig{Dir: dir, NodeName: "n1", Pods: h, Mirrors: m, Logger: slog.New(slog.DiscardHandler)})
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	var running sync.WaitGroup
	defer running.Wait()
	defer cancel()
	running.Go(func() { // ends with ctx
		if err := s.Run(ctx); err != nil {
			t.Error(err)
		}
	})
	select {
	case <-s.Known():
	case <-ctx.Done():
		t.Fatal("the directory is not read")
	}
	if err := os.WriteFile(filepath.Join(dir, "web.yaml"), fmt.Appendf(nil, manifest, 1), 0o600); err != nil {
		t.Fatal(err)
	}
	for range time.Tick(settle / 10) {
		if err := os.WriteFile(filepath.Join(dir, ".web.yaml.swp"), []byte("x"), 0o600); err != nil {
			t.Fatal(err)
		}
		h.mu.Lock()
		runs := len(h.pods) == 1
		h.mu.Unlock()
		if runs {
			return
		}
		if ctx.Err() != nil {
			t.Fatal("the manifest is not read while another file changes")
		}
	}
}

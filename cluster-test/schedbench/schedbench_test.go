package main

import (
	"context"
	"errors"
	"io"
	"net/http"
	"regexp"
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// TestStarted: pods of Jobs end at once, all others are Ready.
func TestStarted(t *testing.T) {
	pod := &corev1.Pod{Spec: (&bench{}).podSpec()}
	if s := started(pod); s.Phase != corev1.PodRunning || len(s.ContainerStatuses) != 1 ||
		!s.ContainerStatuses[0].Ready {
		t.Errorf("%+v", s)
	}
	pod.Spec.RestartPolicy = corev1.RestartPolicyNever
	if s := started(pod); s.Phase != corev1.PodSucceeded || s.ContainerStatuses[0].State.Terminated == nil {
		t.Errorf("%+v", s)
	}
}

func TestWaits(t *testing.T) {
	at := func(s int) time.Time { return time.Unix(int64(s), 0) }
	out, last := waits(map[string]time.Time{"a": at(10), "b": at(12)},
		map[string]time.Time{"a": at(9), "b": at(15), "other": at(99)})
	total := time.Duration(0)
	for _, w := range out {
		total += w
	}
	if len(out) != 2 || total != 3*time.Second || last != at(15) {
		t.Error(out, last)
	}
}

func TestSpent(t *testing.T) {
	before := usage{programs: map[string]time.Duration{"etcd": time.Second}, hollow: time.Second}
	after := usage{programs: map[string]time.Duration{"etcd": 3 * time.Second, "api": 4 * time.Second},
		hollow: 2 * time.Second}
	fs := spent(before, after)
	if len(fs) != 4 || fs[0].Values[0] != 6 || fs[1].What != "CPU time of api" || fs[2].Values[0] != 2 ||
		fs[3].Values[0] != 1 {
		t.Error(fs)
	}
	delete(after.programs, "api")
	if fs := spent(before, after); len(fs) != 2 { // of one program, the sum says it
		t.Error(fs)
	}
}

func TestToRoll(t *testing.T) {
	for what, c := range map[string]struct {
		edit func(*appsv1.Deployment)
		left int
	}{
		"rolled out":          {func(*appsv1.Deployment) {}, 0},
		"not seen yet":        {func(d *appsv1.Deployment) { d.Status.ObservedGeneration = 1 }, 6},
		"of the old template": {func(d *appsv1.Deployment) { d.Spec.Template.Annotations = nil }, 6},
		"an old pod is left":  {func(d *appsv1.Deployment) { d.Status.Replicas = 4 }, 1},
		"a pod is missing":    {func(d *appsv1.Deployment) { d.Status.UpdatedReplicas = 2 }, 1},
		"not available":       {func(d *appsv1.Deployment) { d.Status.AvailableReplicas = 2 }, 1},
		"one is new and does not run yet": {
			func(d *appsv1.Deployment) { d.Status.UpdatedReplicas, d.Status.AvailableReplicas = 1, 2 }, 3},
	} {
		d := (&bench{}).deployment("d", 3)
		d.Generation, d.Spec.Template.Annotations = 2, map[string]string{rolled: "2"}
		d.Status = appsv1.DeploymentStatus{ObservedGeneration: 2, UpdatedReplicas: 3, Replicas: 3, AvailableReplicas: 3}
		c.edit(d)
		if left := toRoll(d, "2"); left != c.left {
			t.Errorf("%s: %d, want %d", what, left, c.left)
		}
	}
	if toRoll(&corev1.Pod{}, "2") == 0 {
		t.Error("a pod is rolled out")
	}
}

func TestIsComplete(t *testing.T) {
	j := &batchv1.Job{}
	if isComplete(j) || isComplete(&corev1.Pod{}) {
		t.Error("one that is not complete")
	}
	j.Status.Conditions = []batchv1.JobCondition{{Type: batchv1.JobSuccessCriteriaMet, Status: corev1.ConditionTrue},
		{Type: batchv1.JobComplete, Status: corev1.ConditionFalse}}
	if isComplete(j) {
		t.Error("a condition that does not hold")
	}
	j.Status.Conditions[1].Status = corev1.ConditionTrue
	if !isComplete(j) || count([]any{j, j, &corev1.Pod{}}, isComplete) != 2 {
		t.Error("one that is complete")
	}
}

func TestIsReady(t *testing.T) {
	n := &corev1.Node{Status: readyStatus()}
	if !isReady(n) || isReady(&corev1.Pod{}) || isReady(&corev1.Node{}) {
		t.Error("a new node is Ready, and what has no status is not")
	}
	n.Status.Conditions[0].Status = corev1.ConditionUnknown
	if isReady(n) {
		t.Error("one that is Unknown")
	}
}

// TestSend: a request that was not done, or whose outcome is unknown, is repeated; a refused one
// is not.
func TestSend(t *testing.T) {
	pods := schema.GroupResource{Resource: "pods"}
	unknown := apierrors.NewTimeoutError("the outcome of the write is unknown", 0)
	exists, refused := apierrors.NewAlreadyExists(pods, "p"), apierrors.NewForbidden(pods, "p", errors.New("no"))
	for _, c := range []struct {
		what    string
		answers []error
		want    error
	}{
		{"taken", []error{nil}, nil},
		{"a lost connection", []error{io.ErrUnexpectedEOF, nil}, nil},
		{"too many requests", []error{apierrors.NewTooManyRequests("later", 1), nil}, nil},
		{"an unknown outcome that was a success", []error{unknown, exists}, nil},
		{"something else of that name", []error{exists}, exists},
		{"refused", []error{refused}, refused},
		{"refused after a lost connection", []error{io.EOF, refused}, refused},
	} {
		b, n := &bench{}, 0
		err := b.send(t.Context(), func() error { n++; return c.answers[n-1] })
		if !errors.Is(err, c.want) || n != len(c.answers) || int(b.repeated.Load()) != n-1 {
			t.Errorf("%s: %v after %d tries", c.what, err, n)
		}
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := (&bench{}).send(ctx, func() error { return io.EOF }); !errors.Is(err, io.EOF) {
		t.Error(err)
	}
	if isFinal(&apierrors.StatusError{ErrStatus: metav1.Status{Code: http.StatusServiceUnavailable}}) {
		t.Error("a server without a leader is asked again")
	}
}

// TestClock: the lag counts from the call of the write, at each server for itself.
func TestClock(t *testing.T) {
	at := func(ms int) time.Time { return time.UnixMilli(int64(ms)) }
	c := &clock{
		called:   map[string]time.Time{"a": at(0), "b": at(100), "failed": at(200)},
		answered: map[string]time.Time{"a": at(4), "b": at(106)},
		seen:     []map[string]time.Time{{"a": at(2), "b": at(105), "failed": at(999)}, {"a": at(8)}},
	}
	fs := c.figures()
	if len(fs) != 4 || fs[0].String() != "4.00" || fs[1].String() != "6.00" || fs[2].String() != "2.00 / 8.00" ||
		fs[3].String() != "5.00 / 8.00" {
		t.Error(fs)
	}
}

func TestOptions(t *testing.T) {
	good := options{nodes: 1000, pods: 5000, deployments: 100, jobs: 2000, kills: 3, watched: time.Minute, repeats: 1}
	if err := good.check(); err != nil {
		t.Error(err)
	}
	for what, edit := range map[string]func(*options){
		"no nodes":             func(o *options) { o.nodes = 0 },
		"fewer pods":           func(o *options) { o.pods = 99 },
		"more pods than fit":   func(o *options) { o.nodes = 45 },
		"too many for the net": func(o *options) { o.nodes = 1 << 15 },
		"no time":              func(o *options) { o.watched = 0 },
	} {
		o := good
		edit(&o)
		if o.check() == nil {
			t.Error(what)
		}
	}
	for nodes, want := range map[int]int{1: 24, 200: 24, 250: 25, 1000: 26, 5000: 29} {
		if got := blockLength(nodes); got != want {
			t.Errorf("%d nodes: /%d, want /%d", nodes, got, want)
		}
	}
}

func TestWanted(t *testing.T) {
	o := options{only: regexp.MustCompile("pods|takeover"), side: regexp.MustCompile("^Barque|on")}
	got := o.wanted()
	if len(got) != 2 || strings.Join(got[0].whose, ",") != "upstream on Barque,Barque" ||
		strings.Join(got[1].whose, ",") != "Barque" {
		t.Errorf("%+v", got)
	}
	if o.only = regexp.MustCompile("none"); len(o.wanted()) != 0 || len(cases[0].whose) != 3 {
		t.Error("a name that is none")
	}
}

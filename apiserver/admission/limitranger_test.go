package admission

import (
	"strings"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/admission"
	"k8s.io/client-go/kubernetes/fake"
	listers "k8s.io/client-go/listers/core/v1"
	"k8s.io/client-go/tools/cache"
	"k8s.io/utils/ptr"
)

func amounts(pairs ...string) corev1.ResourceList {
	list := corev1.ResourceList{}
	for i := 0; i < len(pairs); i += 2 {
		list[corev1.ResourceName(pairs[i])] = resource.MustParse(pairs[i+1])
	}
	return list
}

func newLimits(t *testing.T, ranges ...*corev1.LimitRange) *LimitRanger {
	t.Helper()
	known := cache.NewIndexer(cache.MetaNamespaceKeyFunc,
		cache.Indexers{cache.NamespaceIndex: cache.MetaNamespaceIndexFunc})
	for _, r := range ranges {
		if err := known.Add(r); err != nil {
			t.Fatal(err)
		}
	}
	return NewLimitRanger(listers.NewLimitRangeLister(known), fake.NewClientset())
}

func limitRange(name string, items ...corev1.LimitRangeItem) *corev1.LimitRange {
	return &corev1.LimitRange{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name},
		Spec: corev1.LimitRangeSpec{Limits: items}}
}

func TestLimitDefaults(t *testing.T) {
	l := newLimits(t,
		limitRange("a",
			corev1.LimitRangeItem{Type: corev1.LimitTypeContainer,
				DefaultRequest: amounts("cpu", "100m", "memory", "5Mi"), Default: amounts("cpu", "1")}),
		limitRange("b",
			corev1.LimitRangeItem{Type: corev1.LimitTypeContainer, DefaultRequest: amounts("cpu", "200m"),
				Default: amounts("memory", "10Mi")},
			corev1.LimitRangeItem{Type: corev1.LimitTypePod, Max: amounts("cpu", "9")}))
	pod := newPod(func(p *corev1.Pod) { p.Spec.Containers[0].Resources.Requests = amounts("cpu", "50m") })
	if err := l.Admit(t.Context(), request{obj: pod}.attributes(), nil); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		what      string
		got, want corev1.ResourceList
	}{
		{"requests", pod.Spec.Containers[0].Resources.Requests, amounts("cpu", "50m", "memory", "5Mi")},
		{"limits", pod.Spec.Containers[0].Resources.Limits, amounts("cpu", "1", "memory", "10Mi")},
		{"requests of the init container", pod.Spec.InitContainers[0].Resources.Requests,
			amounts("cpu", "100m", "memory", "5Mi")},
	} {
		if len(c.got) != len(c.want) {
			t.Errorf("%s: %v, want %v", c.what, c.got, c.want)
		}
		for name, q := range c.want {
			if got := c.got[name]; got.Cmp(q) != 0 {
				t.Errorf("%s: %s %s, want %s", c.what, name, got.String(), q.String())
			}
		}
	}
	// The second one of the two wins.
	if got, want := pod.Annotations["kubernetes.io/limit-ranger"],
		"LimitRanger plugin set: memory limit for container c; memory limit for init container i"; got != want {
		t.Errorf("annotation %q", got)
	}
	alone := newPod(func(p *corev1.Pod) { p.Spec.InitContainers = nil })
	if err := newLimits(t,
		limitRange("a",
			corev1.LimitRangeItem{Type: corev1.LimitTypeContainer,
				DefaultRequest: amounts("memory", "5Mi", "cpu", "100m"), Default: amounts("cpu", "1")})).
		Admit(t.Context(), request{obj: alone}.attributes(), nil); err != nil {
		t.Fatal(err)
	}
	if got, want := alone.Annotations["kubernetes.io/limit-ranger"],
		"LimitRanger plugin set: cpu, memory request for container c; cpu limit for container c"; got != want {
		t.Errorf("annotation %q", got)
	}
	silent := newPod(nil)
	if err := newLimits(t,
		limitRange("a", corev1.LimitRangeItem{Type: corev1.LimitTypePod, Max: amounts("cpu", "1")})).Admit(t.Context(),
		request{obj: silent}.attributes(), nil); err != nil || len(silent.Annotations) > 0 {
		t.Errorf("limits without defaults: %v, %v", err, silent.Annotations)
	}
}

func TestLimits(t *testing.T) {
	pod := func(requests, limits corev1.ResourceList) *corev1.Pod {
		return newPod(func(p *corev1.Pod) {
			p.Spec.InitContainers = nil
			p.Spec.Containers[0].Resources = corev1.ResourceRequirements{Requests: requests, Limits: limits}
		})
	}
	claim := func(size string) *corev1.PersistentVolumeClaim {
		return &corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "c"},
			Spec: corev1.PersistentVolumeClaimSpec{
				Resources: corev1.VolumeResourceRequirements{Requests: amounts("storage", size)}}}
	}
	container, whole := corev1.LimitTypeContainer, corev1.LimitTypePod
	min := func(kind corev1.LimitType, pairs ...string) corev1.LimitRangeItem {
		return corev1.LimitRangeItem{Type: kind, Min: amounts(pairs...)}
	}
	max := func(kind corev1.LimitType, pairs ...string) corev1.LimitRangeItem {
		return corev1.LimitRangeItem{Type: kind, Max: amounts(pairs...)}
	}
	ratio := func(kind corev1.LimitType, pairs ...string) corev1.LimitRangeItem {
		return corev1.LimitRangeItem{Type: kind, MaxLimitRequestRatio: amounts(pairs...)}
	}
	two := pod(amounts("cpu", "100m"), amounts("cpu", "200m"))
	two.Spec.Containers = append(two.Spec.Containers, two.Spec.Containers[0])
	started := two.DeepCopy()
	started.Spec.InitContainers = []corev1.Container{
		{Name: "i",
			Resources: corev1.ResourceRequirements{Requests: amounts("cpu", "500m"), Limits: amounts("cpu", "500m")}}}
	beside := started.DeepCopy()
	beside.Spec.InitContainers[0].RestartPolicy = ptr.To(corev1.ContainerRestartPolicyAlways)
	level := two.DeepCopy()
	level.Spec.Resources = &corev1.ResourceRequirements{Requests: amounts("cpu", "2"), Limits: amounts("cpu", "2")}
	heavy := two.DeepCopy()
	heavy.Spec.Overhead = amounts("cpu", "5")
	for _, c := range []struct {
		name string
		item corev1.LimitRangeItem
		obj  runtime.Object
		want string // of the error; "" means that it is allowed
	}{
		{"min", min(container, "cpu", "50m"), pod(amounts("cpu", "100m"), nil), ""},
		{"min, equal", min(container, "cpu", "100m"), pod(amounts("cpu", "100m"), amounts("cpu", "0.1")), ""},
		{"min, no request", min(container, "cpu", "50m"), pod(amounts("memory", "1Gi"), nil),
			"minimum cpu usage per Container is 50m.  No request is specified"},
		{"min, less", min(container, "cpu", "50m"), pod(amounts("cpu", "40m"), nil),
			"minimum cpu usage per Container is 50m, but request is 40m"},
		{"min, lower limit", min(container, "cpu", "50m"), pod(amounts("cpu", "60m"), amounts("cpu", "40m")),
			"minimum cpu usage per Container is 50m, but limit is 40m"},
		{"max", max(container, "memory", "1Gi"), pod(nil, amounts("memory", "1Gi")), ""},
		{"max, no limit", max(container, "memory", "1Gi"), pod(amounts("memory", "1Mi"), nil),
			"maximum memory usage per Container is 1Gi.  No limit is specified"},
		{"max, more", max(container, "memory", "1Gi"), pod(nil, amounts("memory", "2Gi")),
			"maximum memory usage per Container is 1Gi, but limit is 2Gi"},
		{"max, higher request", max(container, "memory", "1Gi"),
			pod(amounts("memory", "2Gi"), amounts("memory", "1Gi")),
			"maximum memory usage per Container is 1Gi, but request is 2Gi"},
		{"max of an init container", max(container, "cpu", "400m"), started,
			"maximum cpu usage per Container is 400m, but limit is 500m"},
		{"ratio", ratio(container, "cpu", "3"), pod(amounts("cpu", "100m"), amounts("cpu", "300m")), ""},
		{"ratio, above", ratio(container, "cpu", "3"), pod(amounts("cpu", "100m"), amounts("cpu", "301m")),
			"cpu max limit to request ratio per Container is 3, but provided ratio is 3.010000"},
		{"ratio, fraction", ratio(container, "cpu", "1500m"), pod(amounts("cpu", "2"), amounts("cpu", "3")), ""},
		{"ratio, huge", ratio(container, "memory", "2"), pod(amounts("memory", "4E"), amounts("memory", "5E")), ""},
		{"ratio, no request", ratio(container, "cpu", "3"), pod(nil, amounts("cpu", "1")),
			"cpu max limit to request ratio per Container is 3, but no request is specified or request is 0"},
		{"ratio, no limit", ratio(container, "cpu", "3"), pod(amounts("cpu", "1"), amounts("cpu", "0")),
			"cpu max limit to request ratio per Container is 3, but no limit is specified or limit is 0"},
		{"pod max", max(whole, "cpu", "400m"), two, ""},
		{"pod max, more", max(whole, "cpu", "399m"), two, "maximum cpu usage per Pod is 399m, but limit is 400m"},
		{"pod max, init container", max(whole, "cpu", "499m"), started,
			"maximum cpu usage per Pod is 499m, but limit is 500m"},
		{"pod max, sidecar", max(whole, "cpu", "899m"), beside, "maximum cpu usage per Pod is 899m, but limit is 900m"},
		{"pod max, of the pod", max(whole, "cpu", "1"), level, "maximum cpu usage per Pod is 1, but limit is 2"},
		{"pod max, overhead is not the user's", max(whole, "cpu", "400m"), heavy, ""},
		{"pod min", min(whole, "cpu", "201m"), two, "minimum cpu usage per Pod is 201m, but request is 200m"},
		{"pod ratio", ratio(whole, "cpu", "1"), two,
			"cpu max limit to request ratio per Pod is 1, but provided ratio is 2.000000"},
		{"claim",
			corev1.LimitRangeItem{Type: corev1.LimitTypePersistentVolumeClaim, Min: amounts("storage", "1Gi"),
				Max: amounts("storage", "2Gi")}, claim("2Gi"), ""},
		{"claim, more", max(corev1.LimitTypePersistentVolumeClaim, "storage", "2Gi"), claim("3Gi"),
			"maximum storage usage per PersistentVolumeClaim is 2Gi, but request is 3Gi"},
		{"claim, less", min(corev1.LimitTypePersistentVolumeClaim, "storage", "2Gi"), claim("1Gi"),
			"minimum storage usage per PersistentVolumeClaim is 2Gi, but request is 1Gi"},
		{"limits of claims are not of pods", max(corev1.LimitTypePersistentVolumeClaim, "storage", "2Gi"), two, ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := request{obj: c.obj}
			if _, ok := c.obj.(*corev1.PersistentVolumeClaim); ok {
				r.resource = "persistentvolumeclaims"
			}
			l := newLimits(t, limitRange("a", c.item))
			err := l.Validate(t.Context(), r.attributes(), nil)
			if c.want == "" && err != nil ||
				c.want != "" && (!apierrors.IsForbidden(err) || !strings.HasSuffix(err.Error(), c.want)) {
				t.Errorf("%v, want %q", err, c.want)
			}
			if r.resource == "" && c.want != "" {
				r.op, r.old = admission.Update, c.obj
				if err := l.Validate(t.Context(), r.attributes(), nil); err != nil {
					t.Errorf("an update, which changes no container: %v", err)
				}
				r.subresource = "resize"
				if err := l.Validate(t.Context(), r.attributes(), nil); !apierrors.IsForbidden(err) {
					t.Errorf("a resize: %v", err)
				}
				going := c.obj.DeepCopyObject().(*corev1.Pod)
				going.DeletionTimestamp = ptr.To(metav1.Now())
				r.old = going
				if err := l.Validate(t.Context(), r.attributes(), nil); err != nil {
					t.Errorf("of a pod that is being deleted: %v", err)
				}
			}
		})
	}
	both := newLimits(t,
		limitRange("a", corev1.LimitRangeItem{Type: container, Max: amounts("cpu", "1", "memory", "1Mi")}))
	err := both.Validate(t.Context(), request{obj: pod(nil, amounts("cpu", "2", "memory", "2Mi"))}.attributes(), nil)
	if err == nil ||
		!strings.HasSuffix(err.Error(),
			"[maximum cpu usage per Container is 1, but limit is 2, maximum memory usage per Container is 1Mi, but limit is 2Mi]") {
		t.Errorf("two at once: %v", err)
	}
}

// A LimitRange that this server's informer lacks counts; the absence of any is read once a second.
func TestNewLimitsCount(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		client := fake.NewClientset()
		l := newLimits(t)
		l.client = client
		admit := func() error {
			return l.Validate(t.Context(), request{obj: newPod(nil)}.attributes(), nil)
		}
		for range 3 {
			if err := admit(); err != nil {
				t.Fatal(err)
			}
		}
		if n := len(client.Actions()); n != 1 {
			t.Errorf("asked %d times", n)
		}
		if err := client.Tracker().Add(
			limitRange("a",
				corev1.LimitRangeItem{Type: corev1.LimitTypeContainer, Max: amounts("cpu", "1")})); err != nil {
			t.Fatal(err)
		}
		time.Sleep(2 * time.Second)
		if err := admit(); !apierrors.IsForbidden(err) {
			t.Errorf("with a LimitRange: %v", err)
		}
	})
}

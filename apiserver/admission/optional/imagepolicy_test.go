package optional

import (
	"context"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/api/imagepolicy/v1alpha1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apiserver/pkg/admission"
)

// imageBackend judges images: it refuses those that begin with "bad".
type imageBackend struct {
	mu     sync.Mutex
	asked  []v1alpha1.ImageReviewSpec
	status int // in place of a verdict
	odd    bool
	server *httptest.Server
	bound  int64 // that of a front; 0 for none
}

func (b *imageBackend) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.bound > 0 && r.ContentLength > b.bound {
		http.Error(w, "too long", http.StatusRequestEntityTooLarge) // without reading it
		return
	}
	var review v1alpha1.ImageReview
	if err := json.NewDecoder(r.Body).Decode(&review); err != nil || review.Kind != "ImageReview" ||
		review.APIVersion != "imagepolicy.k8s.io/v1alpha1" {
		http.Error(w, fmt.Sprint(err, review.TypeMeta), http.StatusBadRequest)
		return
	}
	b.asked = append(b.asked, review.Spec)
	if b.status != 0 {
		http.Error(w, "no verdict", b.status)
		return
	}
	if b.odd {
		fmt.Fprint(w, "<html>")
		return
	}
	review.Status = v1alpha1.ImageReviewStatus{Allowed: true, AuditAnnotations: map[string]string{"seen": "yes"}}
	for _, c := range review.Spec.Containers {
		if strings.HasPrefix(c.Image, "bad") {
			review.Status.Allowed, review.Status.Reason = false, c.Image+" is not signed"
		}
		if c.Image == "mute" {
			review.Status.Allowed, review.Status.Reason = false, ""
		}
	}
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(review)
}

func (b *imageBackend) take() []v1alpha1.ImageReviewSpec {
	b.mu.Lock()
	defer b.mu.Unlock()
	asked := b.asked
	b.asked = nil
	return asked
}

// step starts the backend, and returns the step with a configuration.
func (b *imageBackend) step(t *testing.T, config string) *ImagePolicy {
	t.Helper()
	server := httptest.NewTLSServer(b)
	b.server = server
	t.Cleanup(server.Close)
	dir := t.TempDir()
	path, ca := filepath.Join(dir, "backend"), filepath.Join(dir, "ca.pem")
	if err := os.WriteFile(ca, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate().Raw}),
		0o600); err != nil {
		t.Fatal(err)
	}
	text := fmt.Sprintf(
		"clusters: [{name: b, cluster: {server: %s, certificate-authority: %s}}]\ncontexts: [{name: b, context: {cluster: b}}]\ncurrent-context: b\n", server.URL, ca)
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	p, err := NewImagePolicy(strings.NewReader("imagePolicy: {kubeConfigFile: " + path + config + "}"))
	if err != nil {
		t.Fatal(err)
	}
	return p
}

func podOf(images ...string) *corev1.Pod {
	return newPod(func(p *corev1.Pod) {
		p.Spec.Containers, p.Spec.InitContainers = nil, nil
		for _, image := range images {
			p.Spec.Containers = append(p.Spec.Containers, corev1.Container{Name: "c", Image: image})
		}
	})
}

// annotated keeps the annotations that a step adds to the audit log.
type annotated struct {
	admission.Attributes
	annotations map[string]string
}

// AddAnnotation implements admission.Attributes.
func (a annotated) AddAnnotation(name, value string) error {
	a.annotations[name] = value
	return nil
}

// TestImagePolicy: every image that a pod brings is judged, in every field, and no other.
func TestImagePolicy(t *testing.T) {
	b := &imageBackend{}
	step := b.step(t, ", allowTTL: -1, denyTTL: -1")
	refusal := func(image string) string {
		return "image policy webhook backend denied one or more images: " + image + " is not signed"
	}
	ephemeral, initial, mounted := podOf("good"), podOf("good"), podOf("good")
	initial.Spec.InitContainers = []corev1.Container{{Name: "i", Image: "bad-i"}}
	mounted.Spec.Volumes = []corev1.Volume{
		{VolumeSource: corev1.VolumeSource{Image: &corev1.ImageVolumeSource{Reference: "bad-v"}}}}
	ephemeral.Spec.EphemeralContainers = []corev1.EphemeralContainer{
		{EphemeralContainerCommon: corev1.EphemeralContainerCommon{Name: "e", Image: "bad-e"}}}
	for name, c := range map[string]struct {
		request request
		want    string
		asked   []string
	}{
		"good": {request{obj: podOf("good", "good", "fine")}, "", []string{"good", "fine"}},
		"bad":  {request{obj: podOf("good", "bad")}, refusal("bad"), []string{"good", "bad"}},
		"without a word": {request{obj: podOf("mute")}, "one or more images rejected by webhook backend",
			[]string{"mute"}},
		"init container": {request{obj: initial}, refusal("bad-i"), []string{"good", "bad-i"}},
		"volume":         {request{obj: mounted}, refusal("bad-v"), []string{"good", "bad-v"}},
		"debug container": {request{obj: ephemeral, old: podOf("good"), subresource: "ephemeralcontainers"},
			refusal("bad-e"), []string{"good", "bad-e"}},
		"new image":    {request{obj: podOf("bad"), old: podOf("good")}, refusal("bad"), []string{"bad"}},
		"no new image": {request{obj: podOf("bad"), old: podOf("bad")}, "", nil},
		"status":       {request{obj: podOf("bad"), old: podOf("good"), subresource: "status"}, "", nil},
		"no pod":       {request{obj: podOf("bad"), resource: "podtemplates"}, "", nil},
	} {
		t.Run(name, func(t *testing.T) {
			check(t, name, run(t, step, c.request), c.want)
			var asked []string
			for _, spec := range b.take() {
				if spec.Namespace != "ns" {
					t.Errorf("the namespace is %q", spec.Namespace)
				}
				for _, container := range spec.Containers {
					asked = append(asked, container.Image)
				}
			}
			if !slices.Equal(asked, c.asked) {
				t.Errorf("asked for %q, want %q", asked, c.asked)
			}
		})
	}
	pod := podOf("good")
	pod.Annotations = map[string]string{"ticket.image-policy.k8s.io/number": "1", "other": "2"}
	check(t, "annotations", run(t, step, request{obj: pod}), "")
	if asked := b.take(); len(asked) != 1 || len(asked[0].Annotations) != 1 ||
		asked[0].Annotations["ticket.image-policy.k8s.io/number"] != "1" {
		t.Errorf("the backend saw %+v", asked)
	}
}

// TestImagePolicyRemembers: a verdict is requested once, also a refusal, unless the cache is
// turned off.
func TestImagePolicyRemembers(t *testing.T) {
	for config, want := range map[string]int{"": 2, ", allowTTL: -1": 4, ", denyTTL: -1": 4,
		", allowTTL: -1, denyTTL: -1": 6} {
		b := &imageBackend{}
		step := b.step(t, config)
		for range 3 {
			check(t, "good", run(t, step, request{obj: podOf("good")}), "")
			check(t, "bad", run(t, step, request{obj: podOf("bad")}), "bad is not signed")
		}
		if asked := b.take(); len(asked) != want {
			t.Errorf("%q: asked %d times, want %d", config, len(asked), want)
		}
	}
}

// TestImagePolicyFails: the operator chooses whether a pod passes if there is no answer; the audit
// log has the failure, and a failure is not cached as a verdict.
func TestImagePolicyFails(t *testing.T) {
	for open, want := range map[bool]string{true: "", false: "the image policy's backend did not answer: "} {
		b := &imageBackend{status: http.StatusServiceUnavailable} // which is not repeated
		step := b.step(t, fmt.Sprintf(", defaultAllow: %t, retryBackoff: 1", open))
		for range 2 {
			a := annotated{request{obj: podOf("good")}.attributes(), map[string]string{}}
			err := step.Validate(t.Context(), a, nil)
			if (err == nil) != open || err != nil && !strings.Contains(err.Error(), want) {
				t.Errorf("defaultAllow %t: %v", open, err)
			}
			if (a.annotations[failedOpen] == "true") != open {
				t.Errorf("defaultAllow %t: the audit log has %v", open, a.annotations)
			}
		}
		if asked := b.take(); len(asked) != 2 {
			t.Errorf("asked %d times", len(asked))
		}
		b.status = 0
		a := annotated{request{obj: podOf("good")}.attributes(), map[string]string{}}
		check(t, "it is back", step.Validate(t.Context(), a, nil), "")
		if a.annotations[auditPrefix+"seen"] != "yes" {
			t.Errorf("the audit log has %v", a.annotations)
		}
	}
}

// TestImagePolicyRefusesByOtherAnswers: the author of a pod may bring about an answer without a
// verdict, as by annotations that are too long for a front. It lets no pod through.
func TestImagePolicyRefusesByOtherAnswers(t *testing.T) {
	for status, open := range map[int]bool{
		http.StatusNotModified: false, http.StatusBadRequest: false, http.StatusUnauthorized: false,
		http.StatusForbidden: false, http.StatusNotFound: false,
		http.StatusRequestEntityTooLarge: false, http.StatusUnprocessableEntity: false,
		http.StatusRequestHeaderFieldsTooLarge: false,
		http.StatusTooManyRequests:             true, http.StatusInternalServerError: true, http.StatusBadGateway: true,
		http.StatusGatewayTimeout: true,
	} {
		step := (&imageBackend{status: status}).step(t, ", defaultAllow: true, retryBackoff: 1")
		err := run(t, step, request{obj: podOf("good")})
		if (err == nil) != open ||
			err != nil && (!apierrors.IsForbidden(err) || !strings.Contains(err.Error(), strconv.Itoa(status))) {
			t.Errorf("status %d: %v", status, err)
		}
	}
	step := (&imageBackend{odd: true}).step(t, ", defaultAllow: true, retryBackoff: 1")
	if err := run(t, step, request{obj: podOf("good")}); !apierrors.IsForbidden(err) {
		t.Errorf("by an answer of another form: %v", err)
	}
}

// TestImagePolicyBehindAFront: one that does not read a long request to its end refuses the pod.
func TestImagePolicyBehindAFront(t *testing.T) {
	step := (&imageBackend{bound: 64 << 10}).step(t, ", defaultAllow: true, retryBackoff: 1")
	for _, length := range []int{100 << 10, 250 << 10} {
		pod := podOf("good")
		// six bytes each in JSON
		pod.Annotations = map[string]string{"long.image-policy.k8s.io/a": strings.Repeat("<", length)}
		if err := run(t, step, request{obj: pod}); !apierrors.IsForbidden(err) ||
			!strings.Contains(err.Error(), "413") {
			t.Errorf("%d bytes: %v", length, err)
		}
	}
}

// TestImagePolicyWithoutBackend: an unreachable backend lets pods through if the operator chose
// that. A request that ended before its verdict is refused.
func TestImagePolicyWithoutBackend(t *testing.T) {
	b := &imageBackend{}
	step := b.step(t, ", defaultAllow: true, retryBackoff: 1")
	ended, end := context.WithCancel(t.Context())
	end()
	if err := step.Validate(ended, request{obj: podOf("bad")}.attributes(), nil); !apierrors.IsForbidden(err) {
		t.Errorf("with a request that has ended: %v", err)
	}
	b.server.Close()
	check(t, "unreachable", run(t, step, request{obj: podOf("bad")}), "")
}

// TestImagePolicyMemory: a verdict takes little room, however long the annotations of its pod are.
func TestImagePolicyMemory(t *testing.T) {
	step := (&imageBackend{}).step(t, "")
	pod := podOf("good")
	pod.Annotations = map[string]string{"long.image-policy.k8s.io/a": strings.Repeat("x", 200<<10)}
	check(t, "long annotations", run(t, step, request{obj: pod}), "")
	for _, key := range step.verdicts.Keys() {
		if long := len(fmt.Sprint(key)); long > 1<<10 {
			t.Errorf("a verdict is remembered by %d bytes", long)
		}
	}
}

// TestImagePolicyJudgesPodsOnly: a request about pods without a pod is an error, and is not let
// through.
func TestImagePolicyJudgesPodsOnly(t *testing.T) {
	step := (&imageBackend{}).step(t, "")
	for _, sub := range []string{"", "ephemeralcontainers"} {
		if err := run(t, step, request{obj: &corev1.Service{}, subresource: sub}); !apierrors.IsBadRequest(err) {
			t.Errorf("pods/%s: %v", sub, err)
		}
	}
	check(t, "binding", run(t, step, request{obj: &corev1.Binding{}, subresource: "binding"}), "")
}

// TestImagePolicyKubeconfig: a file from which the loader would take nothing, or the credentials of
// the pod that Barque runs in, is refused.
func TestImagePolicyKubeconfig(t *testing.T) {
	dir := t.TempDir()
	for what, c := range map[string]struct{ text, want string }{
		"nothing":  {"", "it is empty"},
		"comments": {"# later\n", "it is empty"},
		"a head":   {"apiVersion: v1\nkind: Config\n", "it is empty"},
		"no YAML":  {"{", "no YAML: line 1"},
	} {
		path := filepath.Join(dir, what)
		if err := os.WriteFile(path, []byte(c.text), 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := NewImagePolicy(strings.NewReader("imagePolicy: {kubeConfigFile: " + path + "}")); err == nil ||
			!strings.Contains(err.Error(), path) || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v", what, err)
		}
	}
	if _, err := NewImagePolicy(strings.NewReader("imagePolicy: {kubeConfigFile: /dev/null}")); err == nil ||
		!strings.Contains(err.Error(), "no regular file") {
		t.Errorf("a device: %v", err)
	}
}

// TestImagePolicyConfiguration: an error names the field.
func TestImagePolicyConfiguration(t *testing.T) {
	for config, want := range map[string]string{
		"":                                "imagePolicy.kubeConfigFile: Required value",
		"imagePolicy: {}":                 "imagePolicy.kubeConfigFile: Required value",
		"imagePolicy: {kubeConfigFil: a}": `unknown field "kubeConfigFil"`,
		"imagePolicy: {kubeConfigFile: /nowhere}":                             "imagePolicy.kubeConfigFile: ",
		"imagePolicy: {kubeConfigFile: /nowhere, allowTTL: 1801}":             "imagePolicy.allowTTL: Invalid value: 1801: want 1 to 1800 (of 1s)",
		"imagePolicy: {kubeConfigFile: /nowhere, denyTTL: -2}":                "imagePolicy.denyTTL: Invalid value: -2",
		"imagePolicy: {kubeConfigFile: /nowhere, retryBackoff: 300001}":       "imagePolicy.retryBackoff: Invalid value: 300001: want 1 to 300000 (of 1ms)",
		"imagePolicy: {kubeConfigFile: /nowhere, allowTTL: 9223372036854775}": "imagePolicy.allowTTL: Invalid value",
	} {
		if _, err := NewImagePolicy(strings.NewReader(config)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v, want %q", config, err, want)
		}
	}
	if c := (imagePolicy{KubeConfigFile: "f"}); c.complete() != nil || c.allowed.Minutes() != 5 ||
		c.denied.Seconds() != 30 || c.retry.Milliseconds() != 500 {
		t.Errorf("the defaults are %+v", c)
	}
}

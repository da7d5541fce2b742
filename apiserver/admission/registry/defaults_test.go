package registry

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apiserver/pkg/admission"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/pod-security-admission/admission/api/load"
)

// TestPodSecurityDefault: the standard holds for namespaces without a label, not in kube-system,
// and a configuration of the user overrides it.
func TestPodSecurityDefault(t *testing.T) {
	file := filepath.Join(t.TempDir(), "admission.yaml")
	own := `apiVersion: apiserver.config.k8s.io/v1
kind: AdmissionConfiguration
plugins:
- name: PodSecurity
  configuration: {apiVersion: pod-security.admission.config.k8s.io/v1, kind: PodSecurityConfiguration, defaults: {enforce: privileged}}
`
	if err := os.WriteFile(file, []byte(own), 0o600); err != nil {
		t.Fatal(err)
	}
	for name, try := range map[string]struct {
		settings Settings
		enforce  string
		exempt   []string
	}{
		"none":            {Settings{}, "privileged", nil},
		"baseline":        {Settings{PodSecurity: "baseline"}, "baseline", []string{"kube-system"}},
		"the user's file": {Settings{PodSecurity: "baseline", ConfigFile: file}, "privileged", nil},
	} {
		t.Run(name, func(t *testing.T) {
			configs, err := try.settings.read()
			if err != nil {
				t.Fatal(err)
			}
			text, err := configs.ConfigFor("PodSecurity")
			if err != nil {
				t.Fatal(err)
			}
			c, err := load.LoadFromReader(text)
			if err != nil || c.Defaults.Enforce != try.enforce || !slices.Equal(c.Exemptions.Namespaces, try.exempt) {
				t.Errorf("%v: %+v", err, c)
			}
		})
	}
	if err := (Settings{PodSecurity: "strict"}).Check(); err == nil ||
		!strings.Contains(err.Error(), "--pod-security-default") {
		t.Errorf("an unknown standard: %v", err)
	}
}

// TestEventRateLimitByDefault: the plugin needs no file.
func TestEventRateLimitByDefault(t *testing.T) {
	s := Settings{Enable: []string{"EventRateLimit"}, Disable: []string{"NamespaceLifecycle", "ServiceAccount"}}
	chain, err := build(t, s)
	if err != nil {
		t.Fatal(err)
	}
	refused := 0
	for range 60 {
		event := &corev1.Event{ObjectMeta: metav1.ObjectMeta{Name: "e", Namespace: "default"},
			InvolvedObject: corev1.ObjectReference{Kind: "Pod", Name: "p"}}
		a := admission.NewAttributesRecord(event, nil, corev1.SchemeGroupVersion.WithKind("Event"), event.Namespace,
			event.Name,
			corev1.SchemeGroupVersion.WithResource("events"), "", admission.Create, &metav1.CreateOptions{}, false,
			&user.DefaultInfo{Name: "ann"})
		if err := chain.(admission.ValidationInterface).Validate(t.Context(), a, nil); err != nil {
			refused++
		}
	}
	if refused == 0 {
		t.Error("no event of one object was refused")
	}
	if running := s.Running(); !slices.Contains(running, "EventRateLimit") ||
		slices.Contains(running, "ServiceAccount") || !slices.Contains(running, "PodSecurity") {
		t.Errorf("%v", running)
	}
}

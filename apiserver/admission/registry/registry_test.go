package registry

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/admission"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizerfactory"
	dynamicfake "k8s.io/client-go/dynamic/fake"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/component-base/compatibility"
)

// build makes a chain over resources without objects.
func build(t *testing.T, s Settings, unserved ...string) (admission.Interface, error) {
	t.Helper()
	client := fake.NewClientset()
	factory := informers.NewSharedInformerFactory(client, 0)
	stop := make(chan struct{})
	t.Cleanup(func() { close(stop) })
	parts := &Parts{
		Client: client, Informers: factory, Stopped: stop, NotReadySeconds: 3, UnreachableSeconds: 4,
		Dynamic: dynamicfake.NewSimpleDynamicClient(scheme.Scheme), Mapper: meta.NewDefaultRESTMapper(nil),
		Authorizer: authorizerfactory.NewAlwaysAllowAuthorizer(),
		Version:    compatibility.NewEffectiveVersionFromString("1.37", "", ""),
	}
	serves := func(r schema.GroupVersionResource) bool { return !slices.Contains(unserved, r.Resource) }
	chain, err := Build(s, parts, serves)
	factory.Start(stop)
	factory.WaitForCacheSync(stop)
	return chain, err
}

// admit sends a new pod through the mutating half of a chain, in a namespace that has everything.
func admit(t *testing.T, chain admission.Interface) *corev1.Pod {
	t.Helper()
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "p", Namespace: metav1.NamespaceDefault}}
	a := admission.NewAttributesRecord(pod, nil, corev1.SchemeGroupVersion.WithKind("Pod"), pod.Namespace, pod.Name,
		corev1.SchemeGroupVersion.WithResource("pods"), "", admission.Create, &metav1.CreateOptions{}, false,
		&user.DefaultInfo{Name: "ann"})
	if err := chain.(admission.MutationInterface).Admit(t.Context(), a, nil); err != nil {
		t.Fatal(err)
	}
	return pod
}

func TestSettingsChoosePlugins(t *testing.T) {
	others := Settings{Disable: []string{"NamespaceLifecycle", "ServiceAccount"}} // they want objects
	with := func(disable ...string) Settings {
		return Settings{Disable: append(disable, others.Disable...)}
	}
	for name, c := range map[string]struct {
		settings              Settings
		unserved              []string
		priority, tolerations bool
	}{
		"default":      {with(), nil, true, true},
		"disabled":     {with("Priority"), nil, false, true},
		"both":         {with("Priority", "DefaultTolerationSeconds"), nil, false, false},
		"not served":   {with(), []string{"priorityclasses"}, false, true},
		"enabled, too": {Settings{Enable: []string{"Priority"}, Disable: others.Disable}, nil, true, true},
	} {
		t.Run(name, func(t *testing.T) {
			chain, err := build(t, c.settings, c.unserved...)
			if err != nil {
				t.Fatal(err)
			}
			pod := admit(t, chain)
			if got := pod.Spec.Priority != nil; got != c.priority {
				t.Errorf("Priority ran: %t", got)
			}
			if got := len(pod.Spec.Tolerations) == 2; got != c.tolerations {
				t.Errorf("DefaultTolerationSeconds ran: %t", got)
			}
		})
	}
}

func TestWrongSettings(t *testing.T) {
	dir := t.TempDir()
	write := func(name, text string) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	head := "apiVersion: apiserver.config.k8s.io/v1\nkind: AdmissionConfiguration\n"
	for name, c := range map[string]struct {
		settings Settings
		want     string // in the error; "" means that it is right
	}{
		"none": {Settings{}, ""},
		"unknown": {Settings{Enable: []string{"Prioriti"}},
			`--enable-admission-plugins: unknown admission plugin "Prioriti"`},
		"unknown, disabled": {Settings{Disable: []string{"X"}},
			`--disable-admission-plugins: unknown admission plugin "X"`},
		"upstream's only": {Settings{Enable: []string{"PodGroupProtection"}},
			"no admission plugin PodGroupProtection"},
		"both": {Settings{Enable: []string{"Priority"}, Disable: []string{"Priority"}},
			"take it out of one"},
		"no file":       {Settings{ConfigFile: filepath.Join(dir, "none")}, "no such file"},
		"no YAML":       {Settings{ConfigFile: write("text", "x")}, "--admission-control-config-file"},
		"unknown field": {Settings{ConfigFile: write("field", head+"plugin: []\n")}, "unknown field"},
		"no file of plugin": {Settings{ConfigFile: write("path", head+"plugins: [{name: Priority, path: nowhere}]\n")},
			"configuration of Priority"},
		"inline": {
			Settings{ConfigFile: write("inline", head+"plugins: [{name: Priority, configuration: {a: b}}]\n")}, ""},
		"relative to itself": {
			Settings{ConfigFile: write("relative", head+"plugins: [{name: Priority, path: inline}]\n")}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			err := c.settings.Check()
			if (err == nil) != (c.want == "") || err != nil && !strings.Contains(err.Error(), c.want) {
				t.Errorf("%v, want %q", err, c.want)
			}
		})
	}
}

// Every plugin can be made, and upstream's defaults are on.
func TestAllPlugins(t *testing.T) {
	dir := t.TempDir()
	path, backend := filepath.Join(dir, "config"), filepath.Join(dir, "backend")
	text := "apiVersion: apiserver.config.k8s.io/v1\nkind: AdmissionConfiguration\nplugins:\n" +
		"- {name: EventRateLimit, configuration: {limits: [{type: Server, qps: 1, burst: 1}]}}\n" +
		"- {name: ImagePolicyWebhook, configuration: {imagePolicy: {kubeConfigFile: " + backend + "}}}\n"
	if err := os.WriteFile(backend,
		[]byte(
			"clusters: [{name: b, cluster: {server: 'https://127.0.0.1:1'}}]\ncontexts: [{name: b, context: {cluster: b}}]\ncurrent-context: b\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	chain, err := build(t, Settings{Enable: Names(), ConfigFile: path})
	if err != nil {
		t.Fatal(err)
	}
	volume := &corev1.PersistentVolume{}
	a := admission.NewAttributesRecord(volume, nil, corev1.SchemeGroupVersion.WithKind("PersistentVolume"), "", "v",
		corev1.SchemeGroupVersion.WithResource("persistentvolumes"), "", admission.Create, &metav1.CreateOptions{},
		false, &user.DefaultInfo{Name: "ann"})
	err = chain.(admission.MutationInterface).Admit(t.Context(), a, nil)
	if err == nil || !strings.HasSuffix(err.Error(), "admission control is denying all modifications") ||
		len(volume.Finalizers) != 1 {
		t.Errorf("the chain ended with %v, and the volume has %q", err, volume.Finalizers)
	}
	off := []string{
		"AlwaysAdmit", "NamespaceAutoProvision", "NamespaceExists", "LimitPodHardAntiAffinityTopology",
		"AlwaysPullImages", "ImagePolicyWebhook", "PodNodeSelector",
		"PodTolerationRestriction", "EventRateLimit", "ExtendedResourceToleration", "PodGroupProtection",
		"OwnerReferencesPermissionEnforcement",
		"DenyServiceExternalIPs", "AlwaysDeny",
	}
	if got := namesOf(func(p *plugin) bool { return !p.on || p.create == nil }); !slices.Equal(got, off) {
		t.Errorf("off are %q", got)
	}
}

// The last plugins see requests as all others have left them.
func TestOrder(t *testing.T) {
	all := namesOf(func(*plugin) bool { return true })
	last := []string{"MutatingAdmissionPolicy", "MutatingAdmissionWebhook", "ValidatingAdmissionPolicy",
		"ValidatingAdmissionWebhook", "ResourceQuota", "AlwaysDeny"}
	if !slices.Equal(all[len(all)-len(last):], last) {
		t.Errorf("the chain ends with %q", all[len(all)-len(last):])
	}
	if len(slices.Compact(slices.Sorted(slices.Values(all)))) != len(all) {
		t.Errorf("a plugin is there twice: %q", all)
	}
	for before, after := range map[string]string{
		"NamespaceLifecycle": "LimitRanger", "LimitRanger": "ServiceAccount", "ServiceAccount": "PodSecurity",
		"PodSecurity": "Priority", "Priority": "DefaultTolerationSeconds",
		"DefaultStorageClass": "StorageObjectInUseProtection",
		"RuntimeClass":        "CertificateApproval", "DefaultIngressClass": "MutatingAdmissionPolicy",
	} {
		if slices.Index(all, before) > slices.Index(all, after) || !slices.Contains(all, before) {
			t.Errorf("%s does not run before %s", before, after)
		}
	}
}

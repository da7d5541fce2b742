package registry

import (
	"bytes"
	"os"
	"path/filepath"
	"testing"

	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/utils/clock"

	barqueadmission "github.com/barque/barque/apiserver/admission"
	"github.com/barque/barque/apiserver/admission/optional"
)

// FuzzConfiguration: no file in the place of an AdmissionConfiguration crashes a server, and no
// part of it in the place of a plugin's configuration.
func FuzzConfiguration(f *testing.F) {
	const head = "apiVersion: apiserver.config.k8s.io/v1\nkind: AdmissionConfiguration\n"
	for _, seed := range []string{
		"", "{}", head, head + "plugins: []\n", head + "plugins: [{name: PodSecurity}]\n",
		head + "plugins: [{name: PodSecurity, path: nowhere.yaml}]\n", head + "plugins: [null]\n",
		head +
			"plugins:\n- name: PodSecurity\n  configuration:\n    apiVersion: pod-security.admission.config.k8s.io/v1\n    kind: PodSecurityConfiguration\n    defaults: {enforce: baseline, enforce-version: v1.30}\n    exemptions: {namespaces: [kube-system]}\n",
		head +
			"plugins:\n- name: EventRateLimit\n  configuration:\n    apiVersion: eventratelimit.admission.k8s.io/v1alpha1\n    kind: Configuration\n    limits: [{type: Server, qps: 5, burst: 2}, {type: Namespace, qps: 1, burst: 1, cacheSize: 10}]\n",
		head +
			"plugins:\n- name: ImagePolicyWebhook\n  configuration:\n    imagePolicy: {kubeConfigFile: nowhere, allowTTL: 5, denyTTL: 5, retryBackoff: 500, defaultAllow: false}\n",
		head +
			"plugins:\n- name: PodNodeSelector\n  configuration:\n    podNodeSelectorPluginConfig: {clusterDefaultNodeSelector: 'a=b', shop: 'c=d'}\n",
		head +
			"plugins:\n- name: PodTolerationRestriction\n  configuration:\n    apiVersion: podtolerationrestriction.admission.k8s.io/v1alpha1\n    kind: Configuration\n    default: [{key: a, operator: Exists}]\n",
		`{"apiVersion":"apiserver.config.k8s.io/v1alpha1","kind":"AdmissionConfiguration","plugins":[{"name":"EventRateLimit","configuration":{"limits":[{"type":"User","qps":-1,"burst":2147483647,"cacheSize":-1}]}}]}`,
	} {
		f.Add([]byte(seed))
	}
	path := filepath.Join(f.TempDir(), "admission.yaml")
	client := fake.NewClientset()
	core := informers.NewSharedInformerFactory(client, 0).Core().V1()
	spaces := optional.Namespaces{}
	f.Fuzz(func(t *testing.T, data []byte) {
		if err := os.WriteFile(path, data, 0o600); err != nil {
			t.Fatal(err)
		}
		all, err := Settings{ConfigFile: path}.read()
		if err != nil {
			return
		}
		for _, text := range all {
			_, _ = optional.NewEventRate(bytes.NewReader(text), clock.RealClock{})
			_, _ = optional.NewImagePolicy(bytes.NewReader(text))
			_, _ = optional.NewNodeSelectors(bytes.NewReader(text), spaces)
			_, _ = optional.NewTolerationLimits(bytes.NewReader(text), spaces)
			_, _ = barqueadmission.NewPodSecurity(bytes.NewReader(text), core.Namespaces().Lister(),
				core.Pods().Lister(), client)
		}
	})
}

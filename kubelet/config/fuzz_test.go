package config

import (
	"os"
	"path/filepath"
	"testing"
)

// FuzzLoad: any file is refused with an error, or gives a configuration that is complete and valid.
func FuzzLoad(f *testing.F) {
	for _, seed := range []string{
		"", "{}", "[]", "null", "kind: KubeletConfiguration\napiVersion: kubelet.config.k8s.io/v1beta1\n",
		"kind: KubeletConfiguration\napiVersion: kubelet.config.k8s.io/v1beta1\neventRecordQPS: null\nregistryPullQPS: null\nmaxParallelImagePulls: null\n",
		"kind: KubeletConfiguration\napiVersion: kubelet.config.k8s.io/v1beta1\ntlsCipherSuites: [null, \"\"]\ntlsMinVersion: VersionTLS13\n",
		"kind: KubeletConfiguration\napiVersion: kubelet.config.k8s.io/v1beta1\nevictionHard: {memory.available: 1e999}\nsystemReserved: {cpu: -1}\n",
		"kind: KubeletConfiguration\napiVersion: kubelet.config.k8s.io/v1beta1\ncontainerLogMaxSize: 99999999999999999999Gi\nshutdownGracePeriod: -1h\n",
		"a: &a [*a]", "kind: x\nkind: y\n", "\xff\xfe", "{\"kind\":",
	} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, content []byte) {
		path := filepath.Join(t.TempDir(), "kubelet.yaml")
		if err := os.WriteFile(path, content, 0o600); err != nil {
			t.Fatal(err)
		}
		c, _, err := Load(path, "", nil, nil)
		if err != nil {
			return
		}
		if err := Validate(c); err != nil {
			t.Errorf("%q gives a configuration that is not valid: %v", content, err)
		}
	})
}

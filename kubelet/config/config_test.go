package config

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

const header = "kind: KubeletConfiguration\napiVersion: kubelet.config.k8s.io/v1beta1\n"

func written(t *testing.T, dir, name, content string) string {
	t.Helper()
	path := filepath.Join(dir, name)
	if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

func TestDefault(t *testing.T) {
	c, ignored, err := Load("", "", nil, nil)
	if err != nil || len(ignored) > 0 {
		t.Fatal(ignored, err)
	}
	thresholds, err := Thresholds(c)
	if err != nil || len(thresholds) != 5 || c.MaxPods != 110 || *c.RegistryPullQPS != 5 {
		t.Errorf("%v %+v", err, c)
	}
	if err := Validate(Default()); err != nil {
		t.Error(err)
	}
}

func TestFileAndDropIns(t *testing.T) {
	dir := t.TempDir()
	file := written(t, dir, "kubelet.yaml",
		header+"maxPods: 20\nevictionHard:\n  memory.available: 1Gi\nclusterDomain: x\n")
	drop := filepath.Join(dir, "conf.d")
	if err := os.Mkdir(drop, 0o700); err != nil {
		t.Fatal(err)
	}
	written(t, drop, "20.conf", header+"maxPods: 40\n")
	written(t, drop, "10.conf", header+"maxPods: 30\nregistryPullQPS: 0\nserializeImagePulls: true\n")
	written(t, drop, "README", "no configuration")
	c, ignored, err := Load(file, drop, nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	if c.MaxPods != 40 || *c.RegistryPullQPS != 0 || *c.MaxParallelImagePulls != 1 || len(c.EvictionHard) != 1 {
		t.Errorf("%+v", c)
	}
	if !slices.Equal(ignored, []string{"clusterDomain"}) {
		t.Errorf("ignored: %v", ignored)
	}
	written(t, drop, "30.conf", header+"mergeDefaultEvictionSettings: true\n")
	if c, _, err = Load(file, drop, nil, nil); err != nil || len(c.EvictionHard) != 5 ||
		c.EvictionHard["memory.available"] != "1Gi" {
		t.Errorf("merged with the defaults: %v %v", c.EvictionHard, err)
	}
}

// A flag wins over the files, and a list by flags replaces theirs.
func TestOver(t *testing.T) {
	file := written(t, t.TempDir(), "kubelet.yaml",
		header+"maxPods: 20\nevictionHard: {memory.available: 1Gi, nodefs.available: 1%}\n")
	c, _, err := Load(file, "", nil, map[string]any{"maxPods": 7, "evictionHard": Replace{"memory.available": "2Gi"}})
	if err != nil || c.MaxPods != 7 || len(c.EvictionHard) != 1 || c.EvictionHard["memory.available"] != "2Gi" {
		t.Errorf("%v %+v", err, c)
	}
}

func TestMistakes(t *testing.T) {
	dir := t.TempDir()
	for content, want := range map[string]string{
		header + "maxPodz: 1\n": "maxPodz",
		"maxPods: 1\n":          "want kind",
		header + "evictionHard: {memory.avail: 1Gi}\n":                        "memory.available",
		header + "evictionHard: {memory.available: 101%}\n":                   "percentage",
		header + "evictionSoft: {memory.available: 1Gi}\n":                    "evictionSoftGracePeriod",
		header + "evictionMinimumReclaim: {x: 1Gi}\n":                         "no signal",
		header + "allowedUnsafeSysctls: [vm.swappiness]\n":                    "vm.swappiness",
		header + "imageGCHighThresholdPercent: 70\n":                          "imageGCLowThresholdPercent",
		header + "systemReserved: {gpu: 1}\n":                                 "systemReserved",
		header + "staticPodPath: manifests\n":                                 "absolute",
		header + "containerLogMaxSize: much\n":                                "containerLogMaxSize",
		header + "evictionSoft: {x: 1Gi}\nevictionSoftGracePeriod: {x: 1m}\n": "no signal",
		header + "evictionHard: {nodefs.available: -1Gi}\nmaxPods: 1\n":       "negative",
		header + "registryBurst: -1\nregistryPullQPS: -1\nmaxPods: -1\n":      "maxPods",
		header + "containerLogMaxFiles: 1\nevictionMaxPodGracePeriod: -1\n":   "containerLogMaxFiles",
		header + "shutdownGracePeriodCriticalPods: 1m\n":                      "shutdownGracePeriod",
		header + "eventRecordQPS: -1\neventBurst: 0\n":                        "eventRecordQPS: -1",
		header + "tlsMinVersion: VersionTLS10\n":                              "VersionTLS13",
		header + "tlsCipherSuites: [TLS_FAST]\n":                              "TLS_FAST",
		header + "maxParallelImagePulls: 0\nkubeReserved: {memory: plenty}\n": "kubeReserved",
	} {
		_, _, err := Load(written(t, dir, "kubelet.yaml", content), "", nil, nil)
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want an error about %s", content, err, want)
		}
	}
}

package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestProviderID: the flag wins over the file, which has no field without effect.
func TestProviderID(t *testing.T) {
	file := filepath.Join(t.TempDir(), "kubelet.yaml")
	if err := os.WriteFile(file, []byte("kind: KubeletConfiguration\napiVersion: kubelet.config.k8s.io/v1beta1\n"+
		"providerID: cloud://file\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for args, want := range map[string]string{
		"": "", "--kubelet-config=" + file: "cloud://file",
		"--provider-id=cloud://flag --kubelet-config=" + file: "cloud://flag",
	} {
		o, err := optionsBy(t, roleAgent, strings.Fields(args)...)
		if err != nil {
			t.Fatal(err)
		}
		if o.Kubelet.ProviderID != want || len(o.KubeletIgnored) > 0 {
			t.Errorf("%s: provider ID %q, ignored %v", args, o.Kubelet.ProviderID, o.KubeletIgnored)
		}
	}
}

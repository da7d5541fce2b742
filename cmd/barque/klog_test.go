package main

import (
	"bytes"
	"io"
	"os"
	"testing"

	"k8s.io/client-go/rest"
	"k8s.io/klog/v2"
)

// TestCommandsAreNotInterrupted: the libraries write no lines of their own among a command's
// output, such as an API's warnings.
func TestCommandsAreNotInterrupted(t *testing.T) {
	cmd := root()
	cmd.SetArgs([]string{"version"})
	cmd.SetOut(new(bytes.Buffer))
	before := os.Stderr
	t.Cleanup(func() { os.Stderr = before })
	in, out, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	os.Stderr = out
	if err := cmd.Execute(); err != nil {
		t.Fatal(err)
	}
	rest.WarningLogger{}.HandleWarningHeader(299, "", "would violate PodSecurity")
	klog.InfoS("Waited before sending request", "reason", "client-side throttling")
	klog.Flush()
	if err := out.Close(); err != nil {
		t.Fatal(err)
	}
	if said, err := io.ReadAll(in); err != nil || len(said) > 0 {
		t.Errorf("%q, %v", said, err)
	}
}

// Package kubeapiserver runs upstream's kube-apiserver over etcd, and its actors, for
// comparisons: of the answers (`make answers`) and of the speed (`make bench-api`, `make
// bench-scheduler`). It builds kube-proxy and kubelet, too, for `make bench-network` and `make
// bench-node`, which run them.
//
// All programs are built from the module upstream/, which alone depends on them. All servers listen
// on the loopback, unless they are given hosts of their own.
package kubeapiserver

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
)

// Module is where the go.mod is that says which versions are built, in the root of Barque's source.
const Module = "cluster-test/kubeapiserver/upstream"

// version is the one of Module. kube-apiserver knows by its version which APIs are deprecated.
const version = "v1.37.1"

// packages are the programs that Build knows.
var packages = map[string]string{
	"etcd":                    "go.etcd.io/etcd/server/v3",
	"kube-apiserver":          "k8s.io/kubernetes/cmd/kube-apiserver",
	"kube-controller-manager": "k8s.io/kubernetes/cmd/kube-controller-manager",
	"kube-proxy":              "k8s.io/kubernetes/cmd/kube-proxy",
	"kube-scheduler":          "k8s.io/kubernetes/cmd/kube-scheduler",
	"kubelet":                 "k8s.io/kubernetes/cmd/kubelet",
}

// Build builds programs into a directory that lacks them. It runs in the root of Barque's source.
func Build(ctx context.Context, bin string, programs ...string) error {
	const of = "k8s.io/component-base/version"
	flags := fmt.Sprintf("-s -w -X %[1]s.gitVersion=%[2]s -X %[1]s.gitMajor=1 -X %[1]s.gitMinor=37", of, version)
	for _, program := range programs {
		pkg, ok := packages[program]
		if !ok {
			return fmt.Errorf("no program of upstream is named %q", program)
		}
		path, err := filepath.Abs(filepath.Join(bin, program))
		if err != nil {
			return err
		}
		if _, err := os.Stat(path); !errors.Is(err, fs.ErrNotExist) {
			if err != nil {
				return err
			}
			continue
		}
		fmt.Fprintf(os.Stderr, "building %s; the first of upstream's programs takes some minutes, once\n", program)
		cmd := exec.CommandContext(ctx, Go(), "build", "-ldflags", flags, "-o", path, pkg)
		cmd.Dir = Module
		cmd.Env = append(os.Environ(), "CGO_ENABLED=0", "GOWORK=off", "GOFLAGS=-trimpath -buildvcs=false")
		if out, err := cmd.CombinedOutput(); err != nil {
			return fmt.Errorf("build %s in %s: %w: %s; run this in the root of Barque's source", program, Module, err,
				out)
		}
	}
	return nil
}

// Go returns the go command that make uses.
func Go() string {
	if g := os.Getenv("GO"); g != "" {
		return g
	}
	return "go"
}

package main

import (
	"fmt"
	"os"
	"slices"
	"strings"
	"sync/atomic"
	_ "unsafe" // for go:linkname

	"k8s.io/cli-runtime/pkg/genericiooptions"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/component-base/cli"
	kubectlcmd "k8s.io/kubectl/pkg/cmd"
	cmdutil "k8s.io/kubectl/pkg/cmd/util"

	"github.com/barque/barque/internal/version"
)

// clientVersion is what kubectl takes for its own version. The Makefile sets it by a flag of the
// linker; a plain `go build` leaves upstream's placeholder in it, which upstream's own setter
// replaces by versions v0.0.0 only.
//
//go:linkname clientVersion k8s.io/component-base/version.dynamicGitVersion
var clientVersion atomic.Value

// kubectl runs the kubectl that is part of this binary. It exits by itself when kubectl fails.
func kubectl(args []string) error {
	clientVersion.Store(version.String())
	given := slices.ContainsFunc(args, func(arg string) bool { return arg == "--kubeconfig" || strings.HasPrefix(arg, "--kubeconfig=") })
	if os.Getenv("KUBECONFIG") == "" && !given {
		// Where none is found, kubectl's own search goes on.
		path, err := findKubeconfig("")
		if err == nil {
			err = os.Setenv("KUBECONFIG", path)
			if err != nil {
				return err
			}
		} else if _, statErr := os.Stat(clientcmd.RecommendedHomeFile); statErr != nil {
			// kubectl would only say that nobody listens on localhost:8080.
			cmdutil.BehaviorOnFatal(func(message string, code int) {
				fmt.Fprintf(os.Stderr, "%s\nbarque: %v\n", strings.TrimSuffix(message, "\n"), err)
				os.Exit(code)
			})
		}
	}
	cmd := kubectlcmd.NewDefaultKubectlCommandWithArgs(kubectlcmd.KubectlOptions{
		Arguments: append([]string{"kubectl"}, args...),
		IOStreams: genericiooptions.IOStreams{In: os.Stdin, Out: os.Stdout, ErrOut: os.Stderr},
	})
	cmd.SetArgs(args)
	if code := cli.Run(cmd); code != 0 {
		os.Exit(code)
	}
	return nil
}

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

	"github.com/barque/barque/cmd/barque/command"
	"github.com/barque/barque/internal/version"
)

// clientVersion is kubectl's own version. The Makefile sets it by a linker flag. After a plain
// `go build` it has upstream's placeholder, which upstream's setter replaces by v0.0.0 versions
// only.
//
//go:linkname clientVersion k8s.io/component-base/version.dynamicGitVersion
var clientVersion atomic.Value

// kubectl runs the kubectl of this binary. On failure it exits the process.
func kubectl(args []string) error {
	clientVersion.Store(version.String())
	given := slices.ContainsFunc(args,
		func(arg string) bool { return arg == "--kubeconfig" || strings.HasPrefix(arg, "--kubeconfig=") })
	if os.Getenv("KUBECONFIG") == "" && !given {
		// Without one, kubectl's own search follows.
		path, err := command.FindKubeconfig("")
		if err == nil {
			err = os.Setenv("KUBECONFIG", path)
			if err != nil {
				return err
			}
		} else if _, statErr := os.Stat(clientcmd.RecommendedHomeFile); statErr != nil {
			// kubectl's own message would only be a refused connection to localhost:8080.
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

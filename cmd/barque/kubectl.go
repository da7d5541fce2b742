package main

import (
	"os"

	"k8s.io/cli-runtime/pkg/genericiooptions"
	"k8s.io/component-base/cli"
	kubectlcmd "k8s.io/kubectl/pkg/cmd"
)

// kubectl runs the kubectl that is part of this binary. It exits by itself when kubectl fails.
func kubectl(args []string) error {
	if os.Getenv("KUBECONFIG") == "" {
		// Where none is found, kubectl's own search goes on.
		if path, err := findKubeconfig(""); err == nil {
			if err := os.Setenv("KUBECONFIG", path); err != nil {
				return err
			}
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

package main

import (
	"io"

	"github.com/spf13/cobra"

	"github.com/barque/barque/cmd/barque/command"
)

// The proposals of a shell on Tab. `barque completion` prints the shell's script.

// completionCommand prints the script for a shell.
func completionCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "completion",
		Short: "Print the script that lets a shell complete commands",
		Long: `Print the script that lets a shell complete commands, their flags and the names of
servers.`,
		Example: "  source <(barque completion bash)\n  barque completion bash > /etc/bash_completion.d/barque\n  barque completion fish > ~/.config/fish/completions/barque.fish",
	}
	for shell, write := range map[string]func(*cobra.Command, io.Writer) error{
		"bash":       func(root *cobra.Command, w io.Writer) error { return root.GenBashCompletionV2(w, true) },
		"zsh":        (*cobra.Command).GenZshCompletion,
		"fish":       func(root *cobra.Command, w io.Writer) error { return root.GenFishCompletion(w, true) },
		"powershell": (*cobra.Command).GenPowerShellCompletionWithDesc,
	} {
		cmd.AddCommand(
			&cobra.Command{Use: shell, Short: "Print the script for " + shell, Args: command.NoArgs,
				ValidArgsFunction: cobra.NoFileCompletions,
				RunE: func(
					c *cobra.Command, _ []string,
				) error {
					return write(c.Root(), c.OutOrStdout())
				}})
	}
	return cmd
}

// flagValues are the values of flags that have few.
var flagValues = map[string][]string{
	"output":         {"json", "yaml"},
	"format":         {"json", "yaml"},
	"role":           {"server", "agent"},
	"log-level":      {"debug", "info", "warn", "error"},
	"init":           {"systemd", "openrc"},
	"raft-log-store": {"boltdb", "wal"},
	"overlay":        {"auto", "vxlan", "auto-wireguard", "wireguard", "none"},
	"ip-families":    {"ipv4", "ipv6", "ipv4,ipv6", "ipv6,ipv4"},
}

// addCompletions adds them to all commands below cmd.
func addCompletions(cmd *cobra.Command) {
	for _, sub := range cmd.Commands() {
		addCompletions(sub)
	}
	for name, values := range flagValues {
		f := cmd.Flags().Lookup(name)
		if f == nil || name == "output" && f.Shorthand != "o" { // the doctor's is a file
			continue
		}
		if err := cmd.RegisterFlagCompletionFunc(name,
			cobra.FixedCompletions(values, cobra.ShellCompDirectiveNoFileComp)); err != nil {
			panic(err) // it is registered twice
		}
	}
}

// nodeFlagNames are the flags of addNodeFlags without the token.
var nodeFlagNames = []string{"data-dir", "name", "node-ip", "node-external-ip", "network", "overlay", "vxlan-vni",
	"vxlan-port", "wireguard-port", "zone", "node-label", "node-taint", "gossip-port", "kubelet-port",
	"container-runtime-endpoint", "registries", "release-key",
	"local-volumes-dir", "kubelet-root-dir", "cgroup-root", "log-level", "kubelet-config", "kubelet-config-dir",
	"pod-manifest-path", "pod-logs-dir", "allowed-unsafe-sysctls", "eviction-hard",
	"eviction-soft", "eviction-soft-grace-period", "eviction-minimum-reclaim", "eviction-max-pod-grace-period",
	"eviction-pressure-transition-period", "max-pods", "seccomp-default", "protect-kernel-defaults", "pod-max-pids",
	"profile",
	"tls-min-version", "tls-cipher-suites", "max-unauthenticated-connections",
	"max-unauthenticated-connections-per-source", "max-unauthenticated-connections-exempt",
	"cloud-provider", "provider-id",
	"gateway", "gateway-http-port", "gateway-https-port", "gateway-ports", "gateway-http3", "gateway-trusted-proxies",
	"gateway-proxy-protocol", "gateway-access-log"}

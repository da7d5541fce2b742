// Package command has what all commands have in common: their arguments, flags for asking the
// cluster, the formats of output, questions and progress.
package command

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/barque/barque/internal/terminal"
)

// All commands refuse wrong arguments in one way: with exit code 2, before any change.

// Strict makes all commands below cmd refuse unknown arguments with our exit code. That includes
// parents of subcommands, for which cobra shows the help.
func Strict(cmd *cobra.Command) {
	for _, sub := range cmd.Commands() {
		Strict(sub)
	}
	if cmd.HasSubCommands() && !cmd.Runnable() {
		cmd.Args, cmd.RunE = NoArgs, func(c *cobra.Command, _ []string) error { return c.Help() }
	}
	if takes := cmd.Args; takes != nil {
		cmd.Args = func(c *cobra.Command, args []string) error {
			err := takes(c, args)
			var known *UsageError
			if err != nil && !errors.As(err, &known) {
				return Usage(c, err)
			}
			return err
		}
	}
}

// MayNotBeEmpty are flags whose empty value, such as an unset shell variable, would silently change
// the meaning.
var MayNotBeEmpty = []string{"gateway-access-log", "ingress-class", "gateway-class", "file", "serial",
	"anonymous-paths", "pod-security-default", "profile", "data-dir", "dir", "config-dir", "unit-dir", "listen",
	"server", "join", "name", "node-ip", "node-external-ip", "network", "overlay", "token-file",
	"restore-from", "restore-key-file", "ca-file", "ca-key-file", "snapshot-key-file", "key-file", "role", "kubeconfig", "config",
	"zone", "node-taint", "peers", "agent-cidr",
	"container-runtime-endpoint", "registries", "cgroup-root", "cluster-cidr", "service-cidr", "cluster-domain",
	"raft-log-store",
	"store-memory-limit", "snapshot-dir", "user", "verb", "resource", "decrypt", "namespace", "audit-policy-file",
	"audit-log-format", "audit-log-mode", "audit-log-version",
	"audit-webhook-config-file", "audit-webhook-mode", "audit-webhook-version", "node-arg", "server-arg", "ip-families",
	"admission-control-config-file",
	"scheduler-config-file", "controllers", "default-storage-class", "local-volumes-dir", "kubelet-root-dir",
	"kubelet-config", "kubelet-config-dir",
	"pod-manifest-path", "pod-logs-dir", "provider-id", "allowed-unsafe-sysctls", "eviction-hard", "eviction-soft",
	"eviction-soft-grace-period", "eviction-minimum-reclaim",

	"tls-min-version", "tls-cipher-suites", "tls-san", "api-address", "max-unauthenticated-connections-exempt",
	"authentication-config", "oidc-issuer-url", "oidc-client-id", "oidc-ca-file", "oidc-username-claim",
	"oidc-username-prefix", "oidc-groups-claim", "oidc-groups-prefix",
	"oidc-signing-algs", "authentication-token-webhook-config-file", "authentication-token-webhook-version",
	"token-auth-file", "basic-auth-file",
	"requestheader-client-ca-file", "requestheader-allowed-names", "requestheader-username-headers",
	"requestheader-uid-headers", "requestheader-group-headers",
	"requestheader-extra-headers-prefix",
	"authorization-config", "authorization-mode", "authorization-policy-file", "authorization-webhook-config-file",
	"authorization-webhook-version", "encryption-provider-config", "group", "merge",
	"release-key", "to", "init"}

// RefuseEmpty refuses empty arguments, and empty values of such flags.
func RefuseEmpty(c *cobra.Command, args []string) error {
	switch c.Name() {
	case cobra.ShellCompRequestCmd, cobra.ShellCompNoDescRequestCmd: // the word to complete may still be empty
		return nil
	case "exec": // the rest belongs to another command
		args = args[:min(1, len(args))]
	}
	if slices.Contains(args, "") {
		return Usage(c, errors.New("an argument is empty"))
	}
	for _, name := range MayNotBeEmpty {
		f := c.Flags().Lookup(name)
		if f != nil && f.Changed && isEmpty(f.Value) {
			return Usage(c, fmt.Errorf("--%s is empty: give its value, or leave it out", name))
		}
	}
	return nil
}

// isEmpty reports whether a flag has an empty value, or a list flag an empty element.
func isEmpty(v pflag.Value) bool {
	if list, is := v.(pflag.SliceValue); is {
		values := list.GetSlice()
		return len(values) == 0 || slices.Contains(values, "")
	}
	return v.String() == ""
}

// Usage makes an error one of the command line; nil stays nil.
func Usage(c *cobra.Command, err error) error {
	if err == nil {
		return nil
	}
	return &UsageError{c.CommandPath(), err}
}

// HelpCommand shows the help of another command, and refuses an unknown one.
func HelpCommand() *cobra.Command {
	return &cobra.Command{Use: "help [COMMAND]", Short: "Help about any command",
		RunE: func(c *cobra.Command, args []string) error {
			of, left, err := c.Root().Find(args)
			if err == nil && len(left) > 0 {
				err = fmt.Errorf("unknown command %q for %q", left[0], of.CommandPath())
			}
			if err != nil {
				return Usage(c, err)
			}
			of.InitDefaultHelpFlag()
			return of.Help()
		}}
}

// NoArgs and exactArgs are cobra's checks with our exit code.
func NoArgs(c *cobra.Command, args []string) error {
	if len(args) > 0 && !c.HasSubCommands() {
		return Usage(c, fmt.Errorf("it takes no argument, got %q", args[0]))
	}
	if err := cobra.NoArgs(c, args); err != nil {
		return Usage(c, err)
	}
	return nil
}

// ExactArgs wants one argument for each name.
func ExactArgs(names ...string) cobra.PositionalArgs {
	return func(c *cobra.Command, args []string) error {
		if len(args) != len(names) {
			return Usage(c,
				fmt.Errorf("want %s (%s), got %d", terminal.Plural(len(names), "argument", "arguments"),
					strings.Join(names, ", "), len(args)))
		}
		return nil
	}
}

// SomeArgs wants at least one argument.
func SomeArgs(name string) cobra.PositionalArgs {
	return func(c *cobra.Command, args []string) error {
		if len(args) == 0 {
			return Usage(c, fmt.Errorf("want one or more arguments (%s…), got 0", name))
		}
		return nil
	}
}

// UsageError is returned when the command line itself is wrong.
type UsageError struct {
	Command string
	err     error
}

func (e *UsageError) Error() string { return e.err.Error() }
func (e *UsageError) Unwrap() error { return e.err }

// Command barque is a Kubernetes-compatible cluster in one binary. It has the control plane, the
// datastore, the node agent and the tools of operators.
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"strings"
	"syscall"

	"github.com/spf13/cobra"

	"github.com/barque/barque/apiserver/klogs"
	"github.com/barque/barque/cmd/barque/command"
	"github.com/barque/barque/cmd/barque/image"
	"github.com/barque/barque/cmd/barque/node/options"
	"github.com/barque/barque/cmd/barque/operators"
	"github.com/barque/barque/internal/exitcode"
	"github.com/barque/barque/internal/version"
	"github.com/barque/barque/kubelet/containerd"
)

func main() {
	// The node's containerd is this binary again, as a child process.
	if len(os.Args) > 1 && os.Args[1] == containerd.Command {
		exitOn(containerd.Main(context.Background(), os.Args[2:]))
		return
	}
	// kubectl reads its own arguments, before cobra could mistake them for ours.
	if len(os.Args) > 1 && os.Args[1] == "kubectl" {
		exitOn(kubectl(os.Args[2:]))
		return
	}
	if err := launch(os.Args); err != nil {
		exitOn(withoutRoot(os.Geteuid(), err))
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	exitOn(withoutRoot(os.Geteuid(), interrupted(ctx, root().ExecuteContext(ctx))))
}

// withoutRoot adds the advice to run as root to a permission error without it.
func withoutRoot(user int, err error) error {
	if user == 0 || !errors.Is(err, os.ErrPermission) || strings.Contains(err.Error(), "root") {
		return err
	}
	return fmt.Errorf("%w; run this as root", err)
}

// interrupted gives the error of an interrupted command its own exit code. An error that has a more
// specific code keeps it: see exitcode.Unfinished for commands that may have changed something.
func interrupted(ctx context.Context, err error) error {
	var coded interface{ ExitCode() int }
	if err == nil || ctx.Err() == nil || !errors.Is(err, context.Canceled) && !errors.Is(err, context.Cause(ctx)) ||
		errors.As(err, &coded) {
		return err
	}
	return &exitcode.Error{Code: exitcode.Interrupted, Err: errors.New("interrupted; nothing was changed")}
}

// exitOn ends the process. The code is 0 without an error, that of a child command, 2 for wrong
// arguments, that of a coded error (see exitcode), and 1 for all other errors.
func exitOn(err error) {
	var child *exec.ExitError
	var usage *command.UsageError
	var coded interface{ ExitCode() int }
	switch {
	case err == nil:
		return
	case errors.As(err, &child):
		os.Exit(child.ExitCode())
	case errors.As(err, &usage):
		fmt.Fprintf(os.Stderr, "barque: %v\nSee `%s --help`.\n", err, usage.Command)
		os.Exit(options.ExitUsage)
	case errors.As(err, &coded):
		if err.Error() != "" { // else all is said
			fmt.Fprintln(os.Stderr, "barque:", err)
		}
		os.Exit(coded.ExitCode())
	default:
		fmt.Fprintln(os.Stderr, "barque:", err)
		os.Exit(1)
	}
}

func root() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "barque",
		Short: "A Kubernetes-compatible cluster in one binary, three masters strong",
		Long: `Barque turns Linux machines into a Kubernetes-compatible cluster. Every server has
the replicated datastore, the API, the controllers and a node. Nothing else has to be
installed.

  barque dev up                       a three-server cluster on this machine
  barque server                       the first server of a real one
  barque server --join URL --token T  the second and third
  barque agent --server URL --token T a machine that only runs pods
  barque cluster status               the leader, failing members and remedies`,
		SilenceErrors: true,
		SilenceUsage:  true,
		Version:       version.String(),
	}
	cmd.SetFlagErrorFunc(func(c *cobra.Command, err error) error { return command.Usage(c, err) })
	cmd.SetVersionTemplate("barque {{.Version}}\n")
	cmd.AddCommand(serverCommand(), agentCommand(), operators.ClusterCommand(clusterJoinCommand()),
		operators.SnapshotCommand(), operators.SecretsEncryptCommand(), operators.TokenCommand(),
		operators.UserCommand(), operators.CertCommand(), operators.UpgradeCommand(), operators.AuditCommand(),
		operators.UICommand(), image.Command(), operators.IngressCommand(), operators.ProxyCommand(), devCommand(),
		checkCommand(), operators.VerifyCommand(), versionCommand(), installCommand(), uninstallCommand(),
		configCommand(), completionCommand(), licensesCommand(), manCommand(),
		&cobra.Command{Use: "kubectl", Short: "Run kubectl, with the cluster's kubeconfig unless another one is set",
			DisableFlagParsing: true})
	cmd.SetHelpCommand(command.HelpCommand())
	cmd.InitDefaultHelpCmd()
	cmd.CompletionOptions.DisableDefaultCmd = true // our command refuses unknown shells
	addCompletions(cmd)
	command.Strict(cmd)
	cmd.PersistentPreRunE = func(c *cobra.Command, args []string) error {
		klogs.Silence() // servers and agents send these lines to their own log
		return command.RefuseEmpty(c, args)
	}
	return cmd
}

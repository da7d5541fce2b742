package operators

import (
	"fmt"
	"io"
	"slices"
	"time"

	"github.com/spf13/cobra"

	"github.com/barque/barque/adminapi/remote"
	"github.com/barque/barque/cmd/barque/command"
	"github.com/barque/barque/verify"
)

// VerifyCommand is `barque verify`.
func VerifyCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "verify",
		Short: "Find out whether the cluster keeps its promises",
		Long: `Find out whether the cluster keeps its promises: read, write and watch through all
servers at once for a while, and judge their answers. The command checks that:

  - reads and writes are linearizable
  - no acknowledged write is lost
  - watches deliver every event, in order
  - all servers have the same state
  - every node runs a pod

It works in its own namespace, removes it at the end, and breaks nothing: run it at any
time, or while you restart servers. A server that stays away for a minute is named, and
not judged for that time; the exit code is 1 then as well.`,
		Example: "  barque verify\n  barque verify --duration 10m -o json",
		Args:    command.NoArgs,
	}
	format, kubeconfig := command.OutputFlag(cmd), command.KubeconfigFlag(cmd)
	duration := cmd.Flags().Duration("duration", 20*time.Second, "for how long it reads and writes")
	pods := cmd.Flags().Bool("pods", true, "also start a pod on every node")
	cmd.RunE = func(c *cobra.Command, _ []string) error {
		if err := command.CheckFormat(c, *format); err != nil {
			return err
		}
		if *duration <= 0 {
			return command.Usage(c, fmt.Errorf("--duration %v: want more than nothing", *duration))
		}
		config, err := command.ClientConfig(*kubeconfig)
		if err != nil {
			return err
		}
		began := time.Now()
		r, err := verify.Cluster(c.Context(),
			verify.Options{Config: config, Duration: *duration, Pods: *pods,
				Progress: func(format string, args ...any) {
					fmt.Fprintf(c.ErrOrStderr(), "%6.1fs  %s\n", time.Since(began).Seconds(),
						fmt.Sprintf(format, args...))
				}, Undone: func(err error) bool { return remote.NoLeader(remote.WithoutLeader(err)) }})
		if r != nil { // an interrupted run also reports its findings
			if err := command.Print(c, *format, r, func(w io.Writer) error { return writeVerified(w, r) }); err != nil {
				return err
			}
		}
		return verify.Conclusion(r, remote.WithAdvice(config, err), c.Context().Err() != nil, func(err error) error {
			return remote.Unchanged(remote.WithoutLeader(err))
		})
	}
	return cmd
}

func writeVerified(w io.Writer, r *verify.Report) error {
	fmt.Fprintf(w, "\ncluster\t%s\n", r.Cluster)
	for _, c := range r.Checks {
		switch {
		case len(c.Problems) > 0:
			fmt.Fprintf(w, "NOT KEPT\t%s\n", c.Name)
		case len(c.Unjudged) > 0:
			fmt.Fprintf(w, "NOT JUDGED\t%s\n", c.Name)
		default:
			fmt.Fprintf(w, "kept\t%s (%s)\n", c.Name, c.Detail)
		}
		for _, p := range slices.Concat(c.Problems, c.Unjudged) {
			fmt.Fprintf(w, "\t  %s\n", p)
		}
	}
	return nil
}

package operators

import (
	"errors"
	"fmt"
	"io"
	"log/slog"
	"path/filepath"

	"github.com/spf13/cobra"

	"github.com/barque/barque/backups"
	"github.com/barque/barque/clusterstatus/ask"
	"github.com/barque/barque/cmd/barque/command"
	"github.com/barque/barque/internal/exitcode"
	"github.com/barque/barque/internal/filelock"
	"github.com/barque/barque/membership/enroll"
)

func clusterRecoverCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "recover",
		Short: "Make a new cluster of one server when most servers are lost for good",
		Long: `Make a new cluster from a surviving server, with the data of the old cluster, when most
servers are lost for good. Without a quorum this is the only way to write again.

Run it on a survivor while 'barque server' is stopped there. It shows the state on the
server's disk. Further --data-dir show copies of other survivors' directories. The first
directory is recovered. The command is refused if another given directory has more data,
or if another server of the cluster answers and has a leader.
If a quorum of servers can start again, start them and do not recover.`,
		Example: `  barque cluster recover --inspect                              # the state on this disk
  barque cluster recover --inspect --data-dir /var/lib/barque --data-dir /mnt/copy-of-s2
  barque cluster recover                                        # asks, then recovers this server`,
		Args: command.NoArgs,
	}
	dirs := cmd.Flags().StringArray("data-dir", []string{command.DefaultDataDir},
		"data directory of a server; may be repeated, and the first one is recovered")
	inspect := cmd.Flags().Bool("inspect", false, "only show the state in the directories")
	yes := cmd.Flags().Bool("yes", false, "do not ask")
	format := command.OutputFlag(cmd)
	cmd.RunE = func(c *cobra.Command, _ []string) error {
		if err := command.CheckFormat(c, *format); err != nil {
			return err
		}
		logger := command.NewLogger(slog.LevelWarn)
		refused := func(err error) error {
			return &exitcode.Error{Code: exitcode.Refused, Err: fmt.Errorf("refused, nothing was changed: %w", err)}
		}
		directories, err := dataDirs(*dirs)
		if err != nil {
			return err
		}
		survivors, err := backups.SurveyAll(directories, logger)
		if errors.Is(err, filelock.ErrHeld) {
			return refused(err)
		}
		if err != nil {
			return err
		}
		if *inspect {
			return command.Print(c, *format, survivors,
				func(w io.Writer) error { return backups.WriteSurvivors(w, survivors) })
		}
		if err := backups.Choose(survivors); err != nil {
			return refused(err)
		}
		if err := ask.HasLeader(c.Context(), &survivors[0]); err != nil {
			return refused(err)
		}
		if !*yes {
			fmt.Fprintf(c.ErrOrStderr(), "%s\nRecover %s? [y/N] ", backups.Consequences(survivors), survivors[0].Name)
			if err := command.Confirmed(c); err != nil {
				return err
			}
		}
		done, err := backups.RecoverSurvivor(&survivors[0], directories[0], logger)
		if err != nil {
			return err
		}
		return command.Print(c, *format, done, done.Write)
	}
	return cmd
}

func dataDirs(paths []string) ([]backups.DataDir, error) {
	var all []backups.DataDir
	for _, path := range paths {
		path, err := filepath.Abs(path)
		if err != nil {
			return nil, err
		}
		all = append(all, enroll.Directory(path))
	}
	return all, nil
}

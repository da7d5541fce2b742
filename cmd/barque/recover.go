package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"path/filepath"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/barque/barque/backups"
	"github.com/barque/barque/clusterstatus/ask"
	"github.com/barque/barque/internal/exitcode"
	"github.com/barque/barque/internal/filelock"
	"github.com/barque/barque/membership/enroll"
)

func clusterRecoverCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "recover",
		Short: "Make a new cluster of one server when most servers are lost for good",
		Long: `Make a new cluster, with the data of the old one, of a server that survives when most
servers are lost for good. Without a quorum nothing else can be written any more.

Run it on a survivor while 'barque server' is stopped there. It shows what the server's
disk knows; with more --data-dir, also what copies of other survivors' directories know.
The first directory is recovered. It is refused when another one that is given has more, and
while another server of the cluster answers and has a leader.
When a quorum of servers can be started again: start them, and do not recover.`,
		Example: `  barque cluster recover --inspect                              # what does this disk know?
  barque cluster recover --inspect --data-dir /var/lib/barque --data-dir /mnt/copy-of-s2
  barque cluster recover                                        # asks, then recovers this server`,
		Args: noArgs,
	}
	dirs := cmd.Flags().StringArray("data-dir", []string{defaultDataDir}, "data directory of a server; may be repeated, and the first one is recovered")
	inspect := cmd.Flags().Bool("inspect", false, "only show what the directories know")
	yes := cmd.Flags().Bool("yes", false, "do not ask")
	format := outputFlag(cmd)
	cmd.RunE = func(c *cobra.Command, _ []string) error {
		if err := checkFormat(c, *format); err != nil {
			return err
		}
		logger := newLogger(slog.LevelWarn)
		survivors, err := survey(*dirs, logger)
		if errors.Is(err, filelock.ErrHeld) {
			return &exitcode.Error{Code: exitcode.Refused, Err: fmt.Errorf("refused, nothing was changed: %w", err)}
		}
		if err != nil {
			return err
		}
		if *inspect {
			return print(c, *format, survivors, func(w io.Writer) error { return writeSurvivors(w, survivors) })
		}
		if err := backups.Choose(survivors); err != nil {
			return &exitcode.Error{Code: exitcode.Refused, Err: fmt.Errorf("refused, nothing was changed: %w", err)}
		}
		if err := hasLeader(c.Context(), &survivors[0]); err != nil {
			return &exitcode.Error{Code: exitcode.Refused, Err: fmt.Errorf("refused, nothing was changed: %w", err)}
		}
		if !*yes {
			if err := confirmRecovery(c, survivors); err != nil {
				return err
			}
		}
		id, err := backups.Recover(enroll.Directory(survivors[0].DataDir), logger)
		if err != nil {
			return err
		}
		done := recovered{Server: survivors[0].Name, DataDir: survivors[0].DataDir, Cluster: id, Was: survivors[0].ClusterID}
		return print(c, *format, done, func(w io.Writer) error { return done.write(w) })
	}
	return cmd
}

// survey reads data directories of servers that do not run. It fails with a *enroll.UsedError, at
// once, for one that does.
func survey(dataDirs []string, logger *slog.Logger) ([]backups.Survivor, error) {
	var all []backups.Survivor
	for _, path := range dataDirs {
		path, err := filepath.Abs(path)
		if err != nil {
			return nil, err
		}
		one, err := backups.Survey(enroll.Directory(path), logger)
		if err != nil {
			return nil, err
		}
		all = append(all, one)
	}
	return all, nil
}

// hasLeader returns an error when another server of the survivor's cluster answers and follows a
// leader, or leads: nothing is lost then, and the recovered server would put an end to a cluster
// that is well. When nobody can be asked, there is none.
func hasLeader(ctx context.Context, survivor *backups.Survivor) error {
	config, err := clientConfig(filepath.Join(survivor.DataDir, "admin.kubeconfig"))
	if err != nil || survivor.Recovering != "" {
		return nil
	}
	return ask.HasLeader(ctx, config, survivor.ClusterID, survivor.Name, enroll.KnownServers(survivor.DataDir))
}

func writeSurvivors(w io.Writer, all []backups.Survivor) error {
	fmt.Fprintln(w, "SERVER\tCLUSTER\tLAST TERM\tLAST ENTRY\tREVISION\tKEYS\tSNAPSHOT AT\tMEMBERS\tDATA DIRECTORY")
	for _, s := range all {
		var members []string
		for _, m := range s.Members {
			name := m.Name
			if !m.Voter {
				name += " (no vote)"
			}
			members = append(members, name)
		}
		fmt.Fprintf(w, "%s\t%s\t%d\t%d\t%d\t%d\t%d\t%s\t%s\n", s.Name, s.ClusterID, s.LastTerm, s.LastIndex, s.Revision, s.Keys, s.SnapshotIndex, strings.Join(members, ","), s.DataDir)
	}
	for i := range all {
		for _, note := range all[i].Notes() {
			fmt.Fprintf(w, "\n%s: %s\n", all[i].Name, note)
		}
	}
	if text := backups.Recommendation(all); text != "" {
		fmt.Fprintf(w, "\n%s\n", text)
	}
	return nil
}

func confirmRecovery(c *cobra.Command, all []backups.Survivor) error {
	out, first := c.ErrOrStderr(), all[0]
	var lost []string
	for _, m := range first.Members {
		if !m.Self {
			lost = append(lost, m.Name)
		}
	}
	slices.Sort(lost)
	fmt.Fprintf(out, `%s becomes the only server of a new cluster, with all that its disk has: revision %d, %d keys.

- Writes that only the others had (%s) are lost, also ones that were acknowledged.
- Writes that this server has and that were never acknowledged count from now on.
- The others are shut out for good, also if they serve: each stops when it meets this one. Each must join again
  with --wipe. Agents follow by themselves.
%s- When most servers can be started again, answer no and start them instead: nothing is lost then.

Recover %s? [y/N] `, first.Name, first.Revision, first.Keys, strings.Join(lost, ", "), backups.OneBefore(all), first.Name)
	return confirmed(c)
}

// recovered is the result of a recovery.
type recovered struct {
	Server  string `json:"server"`
	DataDir string `json:"dataDir"`
	Cluster string `json:"cluster"`
	Was     string `json:"was"`
}

func (r recovered) write(w io.Writer) error {
	_, err := fmt.Fprintf(w, `%s is the only server of the new cluster %s now. What is left to do:

1. Start it:                 barque server --data-dir %s
2. Make a token there:       barque token create --role server
3. On each other server:     barque server --wipe --join https://ADDRESS-OF-%s:6443 --token TOKEN
4. For machines that are gone: barque kubectl delete node NAME

Agents that know its address follow by themselves, within two minutes.
`, r.Server, r.Cluster, r.DataDir, r.Server)
	return err
}

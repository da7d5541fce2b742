package operators

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/barque/barque/adminapi/remote"
	"github.com/barque/barque/backups"
	"github.com/barque/barque/cmd/barque/command"
	"github.com/barque/barque/cmd/barque/node"
	"github.com/barque/barque/internal/exitcode"
	"github.com/barque/barque/internal/terminal"
	"github.com/barque/barque/raftstore/backup"
)

// SnapshotCommand is `barque snapshot`.
func SnapshotCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "snapshot",
		Short: "Make, list, verify and restore backups of the cluster",
		Long: `Make, list, verify and restore backups of the cluster. A backup has the whole state of
the cluster. A backup sealed with a key also has the cluster's own keys: a new cluster
can keep the same kubeconfigs and certificates. An unsealed backup has no keys of the
cluster. Its Secrets are in clear, or encrypted so that only this cluster can restore
them. It is only made with --unsealed.

The key is a line of text: the output of 'barque snapshot key', or a passphrase.`,
	}
	cmd.AddCommand(snapshotSaveCommand(), snapshotRestoreCommand(), snapshotListCommand(), snapshotInspectCommand(),
		snapshotKeyCommand())
	return cmd
}

// KeyVariable may hold the key, where a file does not suit.
const KeyVariable = "BARQUE_SNAPSHOT_KEY"

// keyFlag adds --key-file and returns a function that reads the key as text, empty without a key.
func keyFlag(c *cobra.Command) func() (string, error) {
	path := c.Flags().String("key-file", "", "file with the key of the backup (default: $"+KeyVariable+", or none)")
	return func() (string, error) {
		if *path == "" {
			return os.Getenv(KeyVariable), nil
		}
		text, err := os.ReadFile(*path)
		if err != nil {
			return "", fmt.Errorf("the key of the backup: %w", err)
		}
		if len(text) == 0 { // it must not count as no key
			return "", fmt.Errorf("the key of the backup: %s is empty", *path)
		}
		return string(text), nil
	}
}

func snapshotSaveCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "save [FILE]",
		Short: "Save a backup of the running cluster to this machine",
		Long: `Save a backup of the running cluster to this machine. It has every write that was
acknowledged before. The file is read back and verified before it gets its name.

Without a key it is refused (exit code 4), unless --unsealed is given: every reader of
the file can then read its Secrets.`,
		Example: "  barque snapshot save --key-file backup.key\n" +
			"  barque snapshot save --unsealed /mnt/private/x.backup",
		Args: func(c *cobra.Command, args []string) error {
			if len(args) > 1 {
				return command.Usage(c, fmt.Errorf("want one file at most, got %d arguments", len(args)))
			}
			return nil
		},
	}
	key, kubeconfig, format := keyFlag(cmd), command.KubeconfigFlag(cmd), command.OutputFlag(cmd)
	unsealed := cmd.Flags().Bool("unsealed", false,
		"save it without a key: the keys of the cluster are not in it, and only this cluster can restore encrypted Secrets from it")
	cmd.RunE = func(c *cobra.Command, args []string) error {
		if err := command.CheckFormat(c, *format); err != nil {
			return err
		}
		path := ""
		if len(args) == 1 {
			path = args[0]
			if _, err := os.Stat(path); err == nil {
				return command.Usage(c,
					fmt.Errorf("%s exists already: give another name, or remove it first", path))
			}
			if _, err := os.Stat(filepath.Dir(path)); err != nil {
				return command.Usage(c, fmt.Errorf("the directory for the backup: %w", err))
			}
		}
		text, err := key()
		if err != nil {
			return err
		}
		switch {
		case text == "" && !*unsealed:
			return &exitcode.Error{Code: exitcode.Refused,
				Err: fmt.Errorf("save a backup: refused, nothing was saved: %w", backups.ErrUnsealed)}
		case text != "" && *unsealed:
			return command.Usage(c,
				fmt.Errorf("--unsealed, and a key is given with --key-file or %s: leave one of them out", KeyVariable))
		}
		client, err := newSnapshots(*kubeconfig)
		if err != nil {
			return err
		}
		saved, err := client.Save(c.Context(), path, text, command.CopyProgress(c, "saved"))
		if err != nil {
			return err
		}
		return command.Print(c, *format, saved, func(w io.Writer) error {
			fmt.Fprintf(w, "saved and verified\t%s\n", saved.Path)
			writeAbout(w, &saved.About)
			fmt.Fprintf(w, "size\t%s\n", terminal.Bytes(saved.Size))
			return nil
		})
	}
	return cmd
}

func snapshotRestoreCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "restore FILE",
		Short: "Replace the state of the running cluster by a backup",
		Long: `Replace the state of the running cluster by a backup, while the cluster keeps serving.
No server is stopped or wiped. All writes since the backup are lost: objects reappear,
change back or disappear, and controllers and kubelets follow. The cluster keeps its
own keys. To begin a new cluster with a backup: barque server --restore-from FILE.`,
		Args: command.ExactArgs("FILE"),
	}
	key, kubeconfig, format := keyFlag(cmd), command.KubeconfigFlag(cmd), command.OutputFlag(cmd)
	yes := cmd.Flags().Bool("yes", false, "do not ask")
	other := cmd.Flags().Bool("other-cluster", false, "restore it even if it is of another cluster")
	wait := cmd.Flags().Duration("wait", 0,
		"how long to wait for a cluster without a leader (default: some seconds, as an election takes)")
	cmd.RunE = func(c *cobra.Command, args []string) error {
		if err := command.CheckFormat(c, *format); err != nil {
			return err
		}
		if *wait < 0 {
			return command.Usage(c, fmt.Errorf("--wait %s: want how long, such as 1m", *wait))
		}
		text, err := key()
		if err != nil {
			return err
		}
		report, err := backups.Inspect(args[0], text, nil)
		if err != nil {
			return err
		}
		if !report.Verified {
			return command.Usage(c,
				fmt.Errorf("%s is sealed: give the key that opens it with --key-file or %s", args[0], KeyVariable))
		}
		if text != "" && !report.About.Sealed {
			return command.Usage(c,
				fmt.Errorf(
					"%s is not sealed, but a key was given: its author is unknown. To restore it anyway, give no key (--key-file, %s)", args[0], KeyVariable))
		}
		client, err := newSnapshots(*kubeconfig)
		if err != nil {
			return err
		}
		if !*yes {
			a := report.About
			fmt.Fprintf(c.ErrOrStderr(),
				"The state of the cluster at %s is replaced by the backup of %s, revision %d, %d items, of cluster %s.\n"+
					"All later writes are lost. To keep them, save a backup first: barque snapshot save --key-file FILE\nGo on? [y/N] ",
				client.Host(), a.Created.Format(time.RFC3339), a.Revision, a.Items, a.ClusterID)
			if err := command.Confirmed(c); err != nil {
				return err
			}
		}
		restored, err := client.Restore(c.Context(), args[0],
			backups.SnapshotRequest{Key: text, OtherCluster: *other, Wait: wait.Seconds()}, command.CopyProgress(c, "sent"))
		if err != nil {
			return err
		}
		return command.Print(c, *format, restored, func(w io.Writer) error {
			fmt.Fprintf(w, "restored\t%s\n", args[0])
			writeAbout(w, &restored.Backup)
			fmt.Fprintf(w, "revision of the cluster now\t%d\n", restored.Revision)
			return nil
		})
	}
	return cmd
}

func snapshotListCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "ls",
		Short: "List the servers' backups, or those in a directory",
		Long: `List the servers' backups, or those in a directory: the files with the suffix .backup,
oldest first, each with the result of its checksums. The exit code is 1 if a server did
not send its list.`,
		Example: "  barque snapshot ls\n  barque snapshot ls --dir /mnt/backups -o json",
		Args:    command.NoArgs,
	}
	dir := cmd.Flags().String("dir", "", "list the backups in this directory of this machine instead")
	kubeconfig, format := command.KubeconfigFlag(cmd), command.OutputFlag(cmd)
	cmd.RunE = func(c *cobra.Command, _ []string) error {
		if err := command.CheckFormat(c, *format); err != nil {
			return err
		}
		lists, err := listSnapshots(c.Context(), *kubeconfig, *dir)
		if err != nil {
			return err
		}
		if err := command.Print(c, *format, lists,
			func(w io.Writer) error { return writeLists(w, lists) }); err != nil {
			return err
		}
		for _, l := range lists {
			if l.Problem != "" {
				err = errors.Join(err, fmt.Errorf("the backups of server %s are unknown: %s", l.Server, l.Problem))
			}
		}
		return err
	}
	return cmd
}

// newSnapshots returns a client of the server of the kubeconfig.
func newSnapshots(kubeconfig string) (*remote.Snapshots, error) {
	config, err := command.ClientConfig(kubeconfig)
	if err != nil {
		return nil, err
	}
	return remote.NewSnapshots(config)
}

// listSnapshots returns the backups in a directory, or those of all servers if it is empty.
func listSnapshots(ctx context.Context, kubeconfig, dir string) ([]backups.SnapshotList, error) {
	if dir != "" {
		if info, err := os.Stat(dir); err != nil {
			return nil, fmt.Errorf("--dir: %w", err)
		} else if !info.IsDir() {
			return nil, fmt.Errorf("--dir %s is no directory", dir)
		}
		files, err := backup.List(dir)
		return []backups.SnapshotList{{Dir: dir, Files: files}}, err
	}
	client, err := newSnapshots(kubeconfig)
	if err != nil {
		return nil, err
	}
	return client.List(ctx)
}

func writeLists(w io.Writer, lists []backups.SnapshotList) error {
	for i := range lists {
		if i > 0 {
			fmt.Fprintln(w)
		}
		if err := writeList(w, &lists[i]); err != nil {
			return err
		}
	}
	return nil
}

func writeList(w io.Writer, list *backups.SnapshotList) error {
	if list.Problem != "" {
		_, err := fmt.Fprintf(w, "server %s: no answer\n", list.Server)
		return err
	}
	switch {
	case list.Refused != "":
		fmt.Fprintf(w, "server %s, %s; none are made now: %s\n", list.Server, list.Dir, list.Refused)
	case list.Server != "":
		fmt.Fprintf(w, "server %s, %s; every %s, %d stay\n", list.Server, list.Dir, list.Every, list.Keep)
	}
	if len(list.Files) == 0 {
		_, err := fmt.Fprintln(w, "no backups")
		return err
	}
	fmt.Fprintln(w, "NAME\tCREATED\tREVISION\tITEMS\tSIZE\tKEYS OF THE CLUSTER\tCHECKSUMS")
	for _, f := range list.Files {
		state, keys := "ok", "no"
		if f.Problem != "" {
			state = f.Problem
		}
		if f.About.Secrets {
			keys = "yes, sealed"
		}
		fmt.Fprintf(w, "%s\t%s\t%d\t%d\t%s\t%s\t%s\n", f.Name, f.About.Created.Format(time.RFC3339), f.About.Revision,
			f.About.Items, terminal.Bytes(f.Size), keys, state)
	}
	return nil
}

func snapshotInspectCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "inspect FILE",
		Short: "Verify a backup and show its contents, without a cluster",
		Long: `Verify a backup and show its contents, without a cluster. It verifies all checksums and
recomputes the hash of the state. With its key, it also verifies that the keys of the
cluster in it open its encrypted objects. Without its key, a sealed backup's checksums alone are
verified. The exit code is 0 for a correct backup, and 1 for a damaged or unreadable one:
the message has the position.`,
		Args: command.ExactArgs("FILE"),
	}
	key, format := keyFlag(cmd), command.OutputFlag(cmd)
	cmd.RunE = func(c *cobra.Command, args []string) error {
		if err := command.CheckFormat(c, *format); err != nil {
			return err
		}
		text, err := key()
		if err != nil {
			return err
		}
		report, err := backups.Inspect(args[0], text, node.CheckBackup)
		if err != nil {
			return err
		}
		return command.Print(c, *format, report, func(w io.Writer) error { return writeReport(w, report) })
	}
	return cmd
}

func writeReport(w io.Writer, r *backup.Report) error {
	verified := "everything: checksums, order, and the hash of the state"
	if !r.Verified {
		verified = "the checksums; the content is sealed, and no key was given to open it"
	}
	writeAbout(w, &r.About)
	fmt.Fprintf(w, "verified\t%s\n", verified)
	if len(r.SecretNames) > 0 {
		fmt.Fprintf(w, "keys of the cluster\t%s\n", strings.Join(r.SecretNames, ", "))
	}
	if len(r.Kinds) == 0 {
		return nil
	}
	fmt.Fprintln(w, "\nPREFIX\tITEMS\tBYTES")
	for _, k := range r.Kinds {
		prefix := strings.Trim(strconv.Quote(k.Prefix), `"`) // the store's own keys begin with a byte 0
		fmt.Fprintf(w, "%s\t%d\t%d\n", prefix, k.Keys, k.Bytes)
	}
	return nil
}

func writeAbout(w io.Writer, a *backup.About) {
	sealed := "no: the keys of the cluster are not in it, and Secrets are in it in clear, or encrypted for this cluster only"
	if a.Sealed {
		sealed = "yes"
	}
	fmt.Fprintf(w,
		"cluster\t%s\ncreated\t%s, by server %s, barque %s\nrevision\t%d\nitems\t%d\nstate hash\t%s\nsealed\t%s\n",
		a.ClusterID, a.Created.Format(time.RFC3339), a.Server, a.Barque, a.Revision, a.Items, a.StateHash, sealed)
}

func snapshotKeyCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "key",
		Short: "Make a key for backups and print it",
		Long: `Make a key for backups and print it. Keep it away from the cluster: it opens the backups,
and a sealed backup is worthless without it. The comment has the public key. A server
with only the public key seals backups that it cannot open.`,
		Example: "  (umask 077; barque snapshot key > backup.key)",
		Args:    command.NoArgs,
	}
	cmd.RunE = func(c *cobra.Command, _ []string) error {
		secret, public, err := backup.GenerateKey()
		if err != nil {
			return err
		}
		_, err = fmt.Fprintf(c.OutOrStdout(), "# key of Barque's backups; public key: %s\n%s\n", public, secret)
		return err
	}
	return cmd
}

package operators

import (
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/barque/barque/adminapi"
	"github.com/barque/barque/adminapi/remote"
	"github.com/barque/barque/cmd/barque/command"
	"github.com/barque/barque/membership/datakeys"
)

// SecretsEncryptCommand is `barque secrets-encrypt`.
func SecretsEncryptCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "secrets-encrypt",
		Short: "Show and change the encryption of Secrets on the servers' disks",
		Long: `Secrets are encrypted in the store in clusters that began with this version. Others
switch it on with "barque secrets-encrypt enable". See docs/encryption.md.`,
	}
	cmd.AddCommand(encryptionStatusCommand(),
		encryptionChangeCommand(datakeys.Enable, "Encrypt Secrets, and rewrite those that are in clear",
			`Encrypt Secrets, and the resources given with --resource, with a key of the cluster:

  1. All servers get the key.
  2. New objects are encrypted, and the leader rewrites the others.
  3. Each server removes earlier values from its disk: history, snapshots, log.

Resources that are encrypted stay so, unless they are given with --decrypt. The servers
continue without this command and under any leader. It is refused while a server is away
or of an earlier version, which could not read encrypted objects.`),
		encryptionChangeCommand(datakeys.Rotate, "Encrypt with a new key, and drop the old one",
			`Give all encrypted objects a new key:

  1. All servers get the new key.
  2. New objects are encrypted with it, and the leader rewrites the others.
  3. Each server removes earlier values from its disk, and the old key is dropped.`),
		encryptionChangeCommand(datakeys.Renew, "Write all objects anew, and clean the disks",
			`Rewrite each object that is not under the key that encrypts now, and remove earlier
values from the disk of each server.`),
		encryptionChangeCommand(datakeys.Disable, "Decrypt all objects, for the way back to an earlier version",
			`Write all objects in clear. Servers of earlier versions can read them then, and may be
started again with the data of this one.`))
	return cmd
}

func encryptionStatusCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use: "status", Short: "Show the keys by their IDs, the objects under them, and how far a change is",
		Args: command.NoArgs,
	}
	format, kubeconfig := command.OutputFlag(cmd), command.KubeconfigFlag(cmd)
	cmd.RunE = func(c *cobra.Command, _ []string) error {
		if err := command.CheckFormat(c, *format); err != nil {
			return err
		}
		config, err := command.ClientConfig(*kubeconfig)
		if err != nil {
			return err
		}
		answer, err := remote.Encryption(c.Context(), config)
		if err != nil {
			return err
		}
		return printEncryption(c, *format, answer)
	}
	return cmd
}

func printEncryption(c *cobra.Command, format string, answer *adminapi.EncryptionAnswer) error {
	return command.Print(c, format, answer.Status,
		func(w io.Writer) error { return remote.WriteEncryption(w, &answer.Status) })
}

func encryptionChangeCommand(change datakeys.Change, short, long string) *cobra.Command {
	cmd := &cobra.Command{Use: string(change), Short: short, Long: long, Args: command.NoArgs}
	format, kubeconfig := command.OutputFlag(cmd), command.KubeconfigFlag(cmd)
	order := remote.EncryptionChange{Change: change}
	var wait time.Duration
	if change == datakeys.Enable {
		cmd.Flags().StringSliceVar(&order.Resources, "resource", nil,
			"resource to encrypt besides those that are, such as configmaps or widgets.example.com; may be repeated")
		cmd.Flags().StringSliceVar(&order.Decrypt, "decrypt", nil,
			"resource to encrypt no more: its objects are written in clear; may be repeated")
	}
	cmd.Flags().BoolVar(&order.DryRun, "dry-run", false, "only tell whether it would be refused, and why")
	cmd.Flags().DurationVar(&wait, "wait", 10*time.Minute, "how long to wait for the end; 0 does not wait")
	cmd.RunE = func(c *cobra.Command, _ []string) error {
		if err := command.CheckFormat(c, *format); err != nil {
			return err
		}
		if wait < 0 {
			return command.Usage(c, fmt.Errorf("--wait %s is negative", wait))
		}
		config, err := command.ClientConfig(*kubeconfig)
		if err != nil {
			return err
		}
		if len(order.Decrypt) > 0 && !order.DryRun {
			command.Teller(c)(
				"objects of these resources will be in clear on the disks of all servers: " +
					strings.Join(order.Decrypt, ", "))
		}
		answer, err := order.Make(c.Context(), config)
		if err == nil && !order.DryRun && wait > 0 {
			answer, err = remote.AwaitEncryption(c.Context(), config, answer, wait, command.Teller(c))
		}
		if err != nil {
			return err
		}
		if change == datakeys.Enable && !order.DryRun {
			command.Teller(c)(remote.EarlierBackups)
		}
		return printEncryption(c, *format, answer)
	}
	return cmd
}

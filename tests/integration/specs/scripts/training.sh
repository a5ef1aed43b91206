# shellcheck shell=bash
# A stand-in for a training of 12 iterations: writes Megatron-LM's log lines, and a checkpoint every 4 iterations.
# Usage: training.sh [hang|crash] ITERATION. With hang, the attempt that starts from scratch hangs after that iteration;
# with crash, every attempt crashes after it.
set -eu
tracker=checkpoints/latest_checkpointed_iteration.txt
start=0
[ ! -e $tracker ] || start=$(cat $tracker)
[ "$start" = 0 ] || echo "  successfully loaded checkpoint from checkpoints [ t 1/1, p 1/1 ] at iteration $start"
echo "[before the start of training step] datetime: $(date '+%Y-%m-%d %H:%M:%S') "
for iteration in $(seq $((start + 1)) 12); do
    sleep 0.3
    printf ' [%s] iteration %8d/%8d | consumed samples: %12d | elapsed time per iteration (ms): 300.0 | ' \
        "$(date '+%Y-%m-%d %H:%M:%S')" "$iteration" 12 $((4 * iteration))
    printf 'learning rate: 1.000000E-03 | global batch size: %5d | lm loss: 5.5E+00 | loss scale: 1.0 | ' 4
    printf 'grad norm: 1.000 | number of skipped iterations:   0 | number of nan iterations:   0 |\n'
    if [ $((iteration % 4)) = 0 ]; then
        folder=$(printf 'checkpoints/iter_%07d/mp_rank_00' "$iteration")
        mkdir -p "$folder"
        echo weights > "$folder/model_optim_rng.pt"
        echo "$iteration" > $tracker
    fi
    if [ "$iteration" = "${2:-0}" ]; then
        case $1$start in
            hang0)
                printf 'a rank \033[31mprints\033[0m on\n'
                while sleep 4; do echo "waiting for the others"; done
                ;;
            crash*)
                echo "RuntimeError: the weights are gone"
                exit 1
                ;;
        esac
    fi
done
echo "[after training is done] datetime: $(date '+%Y-%m-%d %H:%M:%S') "

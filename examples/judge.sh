#!/bin/sh
# A judge for `paceline tasks run --judge examples/judge.sh`: one question on standard input, one answer on standard output.
read -r question
case $question in
    *'"status":404'*)        echo '{"action":"skip","reason":"it is gone"}' ;;
    *'"class":"invalid"'*)   echo '{"action":"abort","reason":"the order form has changed"}' ;;
    *'down for maintenance'*) echo '{"action":"retry","suggested_delay_seconds":240}' ;;
    *)                       echo '{"action":"retry"}' ;;
esac
